"""Compressed sums of gradients over the data axis, or its slow level: PowerSGD, int8, fp8, top-k, 1-bit Adam and LAMB.

Modules, each importing only those before it:

    compressor    what all kinds have in common
    powersgd      two factors of low rank
    block_codes   few bits an element, one scale a block
    quantised     int8, fp8
    topk          each rank's largest elements
    onebit        Adam's momentum in one bit an element
    kinds         compressors by name
    two_levels    whole within a node, compressed between nodes
    program_sums  which gradients of a program go compressed, over which axes
"""
