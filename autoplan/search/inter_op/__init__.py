"""Pipeline stages: the chain of segments, where it is cut, what each rank holds, what is recomputed."""
