"""The operators of all blocks: which strategy each takes on one mesh, as an integer program.

In the order in which a problem is made, solved and read:

    shared_decisions  decisions that several places of a model share, and operators that are alike
    problem_inputs    what a problem is made of: a model, a mesh, what each operator may do, a price list
    operator_options  what each operator may do: its strategies, less what constraints and named systems rule out
    flows             where a value may go from its producer to its consumers: redistributions, as arcs
    template          the problem without prices, shared by meshes on which the same divides
    hidden            what weights' gradients hide of the redistributions of what their products read
    chunked           what chunks save of redistributions beside products
    exchanged         how a mixture's tokens travel
    problem           the template with its prices: groups of options, tensors that flow between them; the equations
    milp              the equations as arrays; a memory limit is one more row
    solve             the arrays solved: at prices of bytes, or under a limit
    pareto            prices of bytes that lead to leaner and to faster solutions
    intra_op_plan     a solution as layouts, strategies and redistributions of each block, priced
    operator_problem  one problem with every answer to it
"""
