"""Published measurements against what the cost models predict, by one command: python -m cost_models.validation.

``case`` is the vocabulary, ``tables`` reads the files, ``metrics`` and ``halves`` count the errors, ``fit`` finds a
device's figures on one half of the rows, ``report`` prints and writes the document.
"""
