"""How a model starts: recorded from its constructor without its weights, replayed parameter by parameter.

A sharded program under a seed starts from what the user's model starts from: each rank replays the recipe and keeps
its own slices.
"""

from autoplan.initialise.making import buffer_values, init_model, record
from autoplan.initialise.recipe import InitRecipe, Step, View
from autoplan.initialise.replay import replay

__all__ = ["InitRecipe", "Step", "View", "buffer_values", "init_model", "record", "replay"]
