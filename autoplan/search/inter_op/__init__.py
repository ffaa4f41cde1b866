"""Pipeline stages: where the chain of segments is cut, what is recomputed, and what a pipeline rank has to hold.

The operators of every block are chosen before (``intra_op``). What is left are arrays, one number for each segment:

    recomputation      the cheapest mix of kept, selectively and fully recomputed segments that fits
    rank_memory        the memory account: what one device of a pipeline rank needs, read by all that follows
    rank_excess        by how much ranks exceed the memory limit, for many divisions at once
    chain              seconds and bytes of each segment, in one microbatch on one device
    parameter_shares   ZeRO of a candidate: what a device holds of each byte of parameter
    stage_model        what any run of segments costs as a stage: seconds, bytes, messages, what happens once a step
    byte_prices        what a byte is worth to stages that recompute, for which leaner operators are sought
    peak_memory        what of the account stands at once at the busiest moment: what a plan predicts
    partition          which layers a stage holds, one stage on each rank: the best cuts, by dynamic programming
    local_search       and from there by the schedule's own time
    chain_costs        v stages on each rank, or a split backward: what is to be divided, and what that costs
    interleaved_milp   its integer program
    tabu_search        its neighbourhoods
    interleaved        which layers a stage holds, v stages on each rank: the program where it is small, else from
                       neighbour to neighbour
"""
