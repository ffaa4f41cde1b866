"""The search: a traced model and a cluster in, a complete choice out.

It lists the candidates, bounds them, and evaluates the most promising first. A candidate's operators are chosen by an
integer program, then its stages are cut. docs/search_method.md explains the method.

Modules, each importing only those before it:

    budget             what a search may spend
    space              the candidates
    block_cost         what a block costs
    intra_op           strategies of operators
    inter_op           pipeline stages
    operator_problems  each operator problem solved once
    candidate_costs    a candidate's stage model
    bounds             lower bounds
    step_seconds       step time of a partition
    evaluate           one candidate priced
    split_shares       what of the FLOPs the tensor axis splits
    predict            the plan's predicted figures
    state              one search in progress
    repriced           a plan priced again from its record
    breakdown          what its step is made of
    further            plans with axes of their own for experts and long rows, factored axes, or offload, beside the
                       best
    driver             best-first search; decides that nothing fits
    chosen             the best candidate as `Chosen`
    explain            alternatives, remedies, what a pin costs
    entry              the entry: `search`
    tables             embedding tables placed first
"""
