"""The forward of a plan alone, for any number of rows: what ``program.evaluate`` and an inference program run.

A training plan holds the graph of a training step. Its form in evaluation is the same graph without dropout, with batch
norm by its running statistics (``graph``); rows other than the planned ones are those of the rescaled graph, laid out
as planned wherever sizes divide (``layouts``). Both are only taken where a trace of the module in evaluation, with
other rows, gives the same graph (``proof``, ``same``). ``form`` prints and loads the program.

In their order: graph, same, proof, layouts, form.
"""

from autoplan.evaluation.form import forms_of
from autoplan.evaluation.proof import Evaluable, Given, prove

__all__ = ["Evaluable", "Given", "forms_of", "prove"]
