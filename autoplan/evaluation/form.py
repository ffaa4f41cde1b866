"""The program of a plan's forward alone, for any number of rows: typed, printed, loaded."""

import linecache
from collections.abc import Callable
from types import ModuleType

from autoplan.emit.program_text import emit_program
from autoplan.errors import LayoutError, ParallelismError, RescaleError
from autoplan.evaluation.evaluation_choice import forward_choice
from autoplan.evaluation.evaluation_graph import evaluated
from autoplan.ir.graph import Model, batch_rows
from autoplan.ir.record import UNKNOWN, PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower.after_search import typed_program
from autoplan.options import Training
from autoplan.runtime.program_spec import Form
from autoplan.trace.rescale import rescale

TRAIN_ALIKE = (
    "let forward compute the same in training and in evaluation but for dropout and batch norm, and export again"
)


def forms_of(record: PlanRecord) -> Callable[[int], Form]:
    """The forms of a plan by their number of rows, each made when it is asked for.

    ParallelismError where the model, or that number of rows, can't be evaluated.
    """

    def form(rows: int) -> Form:
        lowered = forward_of(record, rows)
        return Form(lowered, module_of(record, lowered, rows))

    return form


def forward_of(record: PlanRecord, rows: int) -> Lowered:
    """The typed program; ParallelismError where it isn't known to be what the model computes."""
    check_known(record, rows)
    model = model_of(record, rows)
    try:
        return typed_program(model, forward_choice(record, model), record.training.apart)
    except (LayoutError, ValueError, AssertionError) as error:
        cause = f"the plan's layouts don't go with that many rows: {error}"
        raise ParallelismError(f"a batch of {rows} rows", cause, give_whole(record)) from None


def model_of(record: PlanRecord, rows: int) -> Model:
    try:
        model = rescale(record.model, batch=rows, compared=True)
    except RescaleError as error:
        raise ParallelismError(f"a batch of {rows} rows", f"{error}", give_whole(record)) from None
    return evaluated(model) if isinstance(record.training, Training) else model


def check_known(record: PlanRecord, rows: int) -> None:
    known, planned = record.evaluable, batch_rows(record.model)
    what = f"a batch of {rows} row{'s' * (rows != 1)}"
    if known.model and isinstance(record.training, Training):
        remedy = "export the plan where it is made" if known == UNKNOWN else TRAIN_ALIKE
        raise ParallelismError("program.evaluate", known.model, remedy)
    if rows != planned and known.rows:
        raise ParallelismError(what, known.rows, give_whole(record))
    if rows < known.least:
        raise ParallelismError(what, f"the model itself takes {known.least} at least", f"give {known.least} or more")


def give_whole(record: PlanRecord) -> str:
    return f"give a batch of {batch_rows(record.model)} rows, as planned"


def module_of(record: PlanRecord, lowered: Lowered, rows: int) -> ModuleType:
    """Its source, run; ``inspect`` and tracebacks find the lines."""
    text = emit_program(lowered, f"the forward alone, of {rows} rows", record.extensions)
    name = f"autoplan_forward_{abs(hash(text))}"
    file = f"<{name}>"
    module = ModuleType(name)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module
