"""Linear and mixed-integer programs: HiGHS as arrays if it is installed, else CBC through PuLP.

Order: `program` (a mixed-integer program in arrays), `engines` (HiGHS and CBC), `arrays` (a program that grows row by
row).
"""
