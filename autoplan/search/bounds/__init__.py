"""Lower bounds that let candidates go unpriced."""
