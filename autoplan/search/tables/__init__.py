"""Tables of embeddings placed on devices: whole, by rows or by columns, in one flat parameter."""
