"""Updates that aren't those of one device on the whole batch.

Order: `local_sgd` (replicas averaged every few steps, or with neighbours), `diloco` (DiLoCo's outer updates),
`weight_stashing` (gradients of older weights), `stashed_versions` (those that microbatches in flight have met),
`arrivals` (in which order gradients came to a server that applies each as it arrives, and of which weights),
`arriving_shard` (its values and updates), `shard_message` (what goes between it and a worker), `asynchronous_servers`
(such servers, and workers that don't wait for one another), `planned_servers` (which servers a plan asks for).
"""
