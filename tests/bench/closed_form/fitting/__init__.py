"""Figures of devices and fabrics fitted to measured rows, and met on the other rows.

Modules, each importing only those before it:

    links      a fabric's figures from measured collectives
    steps      a device's figures from measured steps
    both_ways  every row met by figures that were fitted without it
"""
