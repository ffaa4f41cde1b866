"""Plans measured on this machine against their predicted step times: ``make bench-live``."""
