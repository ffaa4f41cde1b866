"""Operators that share a line of the program, or have several.

Modules, each importing only those before it:

    biased_products  products with their bias
    column_products  column-parallel products as one call, whose backward overlaps; which statements share a line
    token_flight     a mixture in three calls
"""
