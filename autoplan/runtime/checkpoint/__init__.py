"""Checkpoints: one key per parameter whatever the plan, by torch.distributed.checkpoint's protocol.

`checkpoint` saves and loads; `keys`, `groups`, `plain_state` say what; `store`, `bytes`, `index`, `files`, `folders`
say where; `saving` runs saves one after another; `lock` keeps two jobs apart; `fit` refuses what is another model's.
"""
