"""Canonical forms of tensor operators."""
