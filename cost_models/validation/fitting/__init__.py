"""Figures of devices and fabrics fitted to measured rows, and met on the other rows."""
