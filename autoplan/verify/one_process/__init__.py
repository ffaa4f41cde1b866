"""One process that trains the user's own module by the rule of a plan whose steps aren't one device's.

Order: `replica_gradients` (what each replica has of a gradient), `compressed_steps` (steps by compressed gradients),
`older_weights` (PipeDream and its kinds, stale servers), `applied_arrivals` (servers that apply gradients as they
arrive), `asynchronous` (local SGD, DiLoCo, gossip; and which rule a plan follows).
"""
