"""Published measurements against what a closed form of a step predicts.

``python -m tests.bench.closed_form`` prints the errors, fits a device's figures with ``--fit``, and writes
docs/appendix/accuracy.md with ``--write``. ``tests.bench.published_steps`` plans the same rows through ``parallelize``.
Modules, each importing only those before it:

    case         one measured time as a question to the cost models
    metrics      errors of predictions
    cells        errors as cells of a table
    transformer  a transformer's step in closed form, from the cost functions that price plans
    own_table    a table of one's own
    rows         a table's rows, and how they become cases
    halves       which rows may be fitted on, and which are reported
    result       what one table came to
    predict      what the closed form says of a case
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
