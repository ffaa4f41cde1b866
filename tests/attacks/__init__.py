"""What users and accidents do to models, trainings and folders, each with the wrong outcome that it guards against.

    python -m tests.attacks [WORD …]      # the attacks whose name or guard has one of the words; all without

An attack passes where the program does the right thing, or refuses with a clear error. It fails as *silent* (a wrong
result, and nobody was told), *lost* (values or files are gone), or *traceback* (an error that is none of autoplan's).
"""
