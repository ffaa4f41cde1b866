"""A user's module becomes a canonical graph; the only reader of torch.export and torch.fx.

`pipeline` runs the passes. What no program could hold is refused (`checks`). A weightless copy keeps two repeats of
each run of layers (`repeats`). torch.export traces it (`capture`). Every node is written in canonical form (`convert`,
by the table in `forms`). Passes clean and shorten the graph (`passes`). Then `blocks` cuts it into a chain of segments.

Order: `blocks` (the chain of repeated blocks), `rescale` (the graph at another size), `builder` (makes nodes),
`initialise` (how the model's values come about), `passes` (from nodes to nodes), `canonical_forms` (of canonical
forms), `forms` (fills it), `outputs` (the loss among outputs), `batch_binding` (binds batch and loss), `branches` (on
values, taken without reading them), `detached` (``.data``), `caches` (functions that remember), `capture` (runs
torch.export), `direct` (exported programs read as they are), `mixtures` (transformers' experts), `huggingface`
(transformers in a form that shards), `expert_loops` (loops over the experts that were hit), `repeats` (two layers in
place of eighty), `checks` (what a graph would lose), `masked` (what a mask keeps), `convert` (from torch.fx), `modules`
(the user's modules by name), `pipeline` (the passes in order).
"""
