"""Updates that aren't those of one device on the whole batch.

Order: `local_sgd` (replicas averaged every few steps, or with neighbours), `diloco` (DiLoCo's outer updates),
`weight_stashing` (gradients of older weights), `stashed_versions` (those that microbatches in flight have met).
"""
