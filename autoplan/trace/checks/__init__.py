"""What an exported graph would drop or change without a word: refused with its place, or kept.

Modules, each importing only those before it:

    tensors             wrapped, lazy or shared tensors
    hooks               hooks that a graph loses
    modes               training or eval mode of each submodule
    input_dtypes        inputs of another dtype
    side_effects        what forward does beside its graph
    python_state        state that forward keeps in Python
    drawn               draws of Python's random that change nothing
    trained             parameters that autograd trains
    observed            a model watched while it is traced
    steady_state        a second step against the first
    changed_state       what a graph changes in place
    straight_through    operators with a user's backward, recorded
    autograd_functions  a user's own backward
    rows                numbers that follow the batch's rows
"""
