"""The graph of layouts through which a redistribution may pass; its edges are single collectives with prices.

Order: `layouts` (the nodes), `edges` (the single steps), `layout_graph` (both), `single_axis` (the common case of one
axis).
"""
