"""The plan's prices against what the rehearsed program does: every call that is priced is made, every call made priced.

Modules, each importing only those before it:

    priced_plan       a plan priced again, and the rank's share of it
    priced_call       one of its calls
    parameter_calls   those for parameters and their gradients
    calls             all collectives and messages that the plan prices on a rank, and those that it leaves out
    price_check       compares these with a trace's
    priced_operators  the statements of program.py: kernels and FLOPs against their prices
    seconds           a price for each call of a trace
"""
