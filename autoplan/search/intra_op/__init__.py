"""The operators of one block: which strategy each takes, as an integer program."""
