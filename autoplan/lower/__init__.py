"""A choice becomes a typed program: every value gets a layout, and every redistribution is written out.

`typecheck` then proves the program without knowing how it was made.

Order: `lowering` (choice to typed program), `typecheck` (the proof), `replicas` (replicas that step alone, for local
SGD), `apart` (microbatches with losses of their own), `after_search` (all of these),
`resized` (the same choice at other sizes of the batch).
"""
