"""What one microbatch of one block costs on one device: seconds, bytes kept for the backward, bytes while it runs.

    live_forward    the program walked operator by operator, as it runs eagerly: which storages the forward makes;
    saved_tensors   bytes of values, and of what operators keep beside
    live_backward   which storages the backward reads, makes and lets go
    live            what both walks find, as five numbers
    live_compiled   the same of a program that runs compiled, walked kernel by kernel
    selective       what of that is dropped and computed again, as a trade of seconds for bytes
    account         the price of a block: the sum over the operators, redistributions and bytes of its program
"""
