"""What a mask keeps, without a size that follows from values: all rows, and which of them count.

Order: `masked_rows` (all rows and the mask), `graph_edges` (a graph's edges: read by them, summed where they lead),
`masked_operators` (each operator's masked form, or why there is none).
"""
