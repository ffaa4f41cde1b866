"""Linear and integer programs, solved by HiGHS where it is installed, else by CBC.

    integer_program  one in arrays, an answer, Infeasible
    engines          arrays handed to HiGHS, or to CBC through PuLP: ``engine(program).run``
    arrays           arrays under construction: ``ArrayProgram``
"""
