"""Tighter bounds, whose only use is a narrower reported gap (`effort="prove"`)."""
