"""Finds repeated layers, so that two are traced instead of eighty.

Order: `per_child` (configuration entries for each layer), `positions` (whether layers depend on their index), `copying`
(a weightless copy), `finding` (which children repeat).
"""
