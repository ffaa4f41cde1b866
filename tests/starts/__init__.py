"""Training starts where the user's model does: planned from its function and from its values, run on four ranks.

The models set their own initial values, each in its author's way. On four ranks the whole state dict before the first
step must equal one device's bit for bit, and the losses of three steps must equal its within a bound a model.

    python -m tests.starts [NAME …]      # all of tests.starts.models without a name
"""
