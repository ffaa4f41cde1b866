"""Rules of tensor operators: element-wise, products, reductions, views, indexing."""
