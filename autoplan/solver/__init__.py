"""Linear and integer programs: HiGHS by arrays where it is installed, else CBC through PuLP."""
