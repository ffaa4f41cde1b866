"""Steps that someone measured against what the closed form predicts, by one command: python -m cost_models.validation.

Modules, each importing only those before it:

    case     one measured time as a question to the cost models
    metrics  errors of predictions
    own      a table of the user's own
    report   it and its errors as text
"""
