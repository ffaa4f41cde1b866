"""What an exported graph would drop or change without a word: refused, or told.

Modes, hooks, gradients, state that forward changes, dtypes, custom autograd functions; one idea a module.
"""
