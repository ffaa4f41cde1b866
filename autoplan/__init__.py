"""autoplan: a model and a cluster in, a readable sharded program out."""
