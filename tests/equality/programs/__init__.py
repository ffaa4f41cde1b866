"""Random programs: graphs of operators as data, drawn from a seed, run plainly and sharded, made smaller where they
fail."""
