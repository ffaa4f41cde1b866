"""Look-ups in tables of which a rank has some rows or columns."""
