"""Rules of layers: attention, convolutions, normalisations, look-ups, losses, experts."""
