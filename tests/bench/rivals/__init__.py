"""What others do: the rules of other redistribution engines, written anew from their public descriptions, so that the
bytes they move can be counted beside ours, with one ruler.

Each engine is a function from a layout before and a layout after (both ``Dims``: for each tensor dim the ordered axes
that split it) to a tuple of steps. Only even sizes and S against R are compared: what all of them can express.
"""
