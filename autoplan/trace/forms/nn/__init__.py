"""Canonical forms of layers and losses."""
