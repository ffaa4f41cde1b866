"""Linear and mixed-integer programs: HiGHS as arrays if it is installed, else CBC through PuLP.

Order: `program` (a mixed-integer program in arrays), `engines` (HiGHS and CBC), `linear` (a linear program and its
lower bound), `pulp_problem` (a PuLP problem that knows its variables).
"""
