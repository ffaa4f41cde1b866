"""Published measurements against what the cost models predict, by one command: python -m cost_models.validation.

Modules, each importing only those before it:

    case         one measurement as a question to the cost models
    metrics      errors of predictions
    halves       which rows may be fitted on, and which are reported
    result       what one table came to
    predict      what the closed forms say of a case
    own          a table of the user's own
    tables       the published tables of steps and layers
    memory       the published tables of bytes
    collectives  published times of collectives
    kernels      published times of single kernels
    published    all results
    fitting      a device's figures, fitted to one half of the rows
    report       results as text
    plot         results as a picture
    document     docs/appendix/accuracy.md
"""
