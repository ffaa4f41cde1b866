"""What a user or an accident can do to a plan, a training or its folders, and the wrong outcome that each guards against.

    python -m tests.attacks [WORD …]      # the attacks whose name or guard has one of the words; all without

An attack passes where the program does the right thing, or refuses with a clear error. It fails as *silent* (a wrong
result, and nobody was told), *lost* (values or files are gone), or *traceback* (an error that is none of autoplan's).
"""
