"""Random damage to the folders that autoplan writes, and what reading them comes to.

    python -m tests.corruptions [--times 700] [--seed N] [TARGET …]      # checkpoint, weights, plan; all without

Every damaged folder is either refused with a clear error, and nothing in memory has changed, or it is harmless: the
same values are loaded as from the whole folder. Whatever else is seen fails: *unnoticed* (other values were loaded),
*changed* (an error came, but memory isn't as it was), *traceback* (an error that is none of autoplan's).
"""
