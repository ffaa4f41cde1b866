"""Published measurements against what the cost models predict, by one command: python -m cost_models.validation.

``case`` has the dataclasses, ``tables`` reads the files, ``metrics`` counts the errors, ``fitting`` finds a device's
figures on one half of the rows, ``report`` prints and writes the document.
"""
