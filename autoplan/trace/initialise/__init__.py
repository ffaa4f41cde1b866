"""How a model starts: with the values it holds, or with those that its constructor draws.

A function that makes a model is recorded as it runs, without its weights. Each rank replays the record under a seed and
keeps its slices. The replay is compared with the function's own values, where that fits this machine.

Modules, each importing only those before it:

    draws                 random draws in little memory
    generators            torch's generator while recording
    constructor_recorder  watches a constructor
    replay                runs a recipe
    lifting               constants in attributes as buffers
    plain                 tensors that no program could hold
    recipe_check          a recipe against the constructor
    making                whole modules
    handed                what a user hands over
"""

from autoplan.trace.initialise.handed import Given, check_given, given
from autoplan.trace.initialise.making import init_model, record, resets_recipe, unfilled_names
from autoplan.trace.initialise.replay import is_random, replay

__all__ = [
    "Given", "check_given", "given", "init_model", "is_random", "record", "replay", "resets_recipe", "unfilled_names",
]  # fmt: skip
