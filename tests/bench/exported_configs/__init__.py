"""Recipes' plans as other trainers' configurations, read by the trainers' own parsers and planned back.

Order: `cells` (one recipe under each trainer), `document` (the table), `__main__` (the command).
"""
