"""Training starts where the user's model does: planned from its function and from its values, run on four ranks.

    python -m tests.starts [NAME …]      # all of tests.starts.models without a name
"""
