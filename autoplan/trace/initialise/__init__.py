"""How a model starts: with the values that it holds, or with those that what makes it is recorded to draw.

``given`` takes what a user hands over, a module or a function that makes one, and says where training starts from
(``Start``). A sharded program under a seed starts from what the user's function makes under it: each rank replays the
recipe and keeps its own slices. What is replayed was compared with what is made, where that fits this machine.
"""

from autoplan.trace.initialise.handed import Given, check_given, given
from autoplan.trace.initialise.making import buffer_values, init_model, record, resets_recipe, unfilled_names
from autoplan.trace.initialise.replay import is_random, replay

__all__ = [
    "Given",
    "buffer_values", "check_given", "given", "init_model", "is_random", "record", "replay", "resets_recipe",
    "unfilled_names",
]  # fmt: skip
