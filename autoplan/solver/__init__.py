"""Linear and integer programs, solved by HiGHS where it is installed, else by CBC.

    integer_program  one in arrays, an answer, Infeasible
    highs, cbc       it inside HiGHS; it as a PuLP problem for CBC
    branching        branch and bound over a large program of choices
    engines          whichever is installed: ``engine(program).run``
    arrays           arrays under construction: ``ArrayProgram``
"""
