"""The program of a plan's forward alone, for any number of rows and fewer tokens: typed, printed, loaded."""

import linecache
from collections.abc import Callable
from types import ModuleType

from autoplan.emit.program_text import emit_program
from autoplan.errors import LayoutError, ParallelismError, RescaleError
from autoplan.evaluation.evaluation_choice import forward_choice
from autoplan.evaluation.evaluation_graph import evaluated
from autoplan.ir.graph import Model
from autoplan.ir.record import UNKNOWN, PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower.after_search import typed_program
from autoplan.lower.resized import BatchSizes, planned_sizes
from autoplan.options import Training
from autoplan.runtime.program_spec import Form
from autoplan.trace.rescale import rescale

TRAIN_ALIKE = (
    "let forward compute the same in training and in evaluation but for dropout and batch norm, and export again"
)


def forms_of(record: PlanRecord) -> Callable[[BatchSizes], Form]:
    """The forms of a plan by the sizes of the batch, each made when it is asked for.

    ParallelismError where the model, or a batch of that size, can't be evaluated.
    """

    def form(sizes: BatchSizes) -> Form:
        lowered = forward_of(record, sizes)
        return Form(lowered, module_of(record, lowered, sizes))

    return form


def forward_of(record: PlanRecord, sizes: BatchSizes) -> Lowered:
    """The typed program; ParallelismError where it isn't known to be what the model computes."""
    check_known(record, sizes)
    model = model_of(record, sizes)
    try:
        return typed_program(model, forward_choice(record, model), record.training.microbatch_statistics)
    except (LayoutError, ValueError, AssertionError) as error:
        cause = f"the plan's layouts don't go with that size: {error}"
        raise ParallelismError(str(sizes), cause, give_whole(record)) from None


def model_of(record: PlanRecord, sizes: BatchSizes) -> Model:
    try:
        model = rescale(record.model, batch=sizes.rows, seq=sizes.tokens or None, compared=True)
    except RescaleError as error:
        raise ParallelismError(str(sizes), f"{error}", give_whole(record)) from None
    return evaluated(model) if isinstance(record.training, Training) else model


def check_known(record: PlanRecord, sizes: BatchSizes) -> None:
    known, planned, rows = record.evaluable, planned_sizes(record.model), sizes.rows
    what = str(BatchSizes(rows))
    if known.model and isinstance(record.training, Training):
        remedy = "export the plan where it is made" if known == UNKNOWN else TRAIN_ALIKE
        raise ParallelismError("program.evaluate", known.model, remedy)
    if sizes.tokens != planned.tokens:
        few = f"it is known for {known.least_tokens} at least" if sizes.tokens < known.least_tokens else ""
        if known.tokens or few:
            raise ParallelismError(f"rows of {sizes.tokens} tokens", known.tokens or few, give_whole(record))
    if rows != planned.rows and known.rows:
        raise ParallelismError(what, known.rows, give_whole(record))
    if rows < known.least:
        raise ParallelismError(what, f"the model itself takes {known.least} at least", f"give {known.least} or more")


def give_whole(record: PlanRecord) -> str:
    return f"give {planned_sizes(record.model)}, as planned"


def module_of(record: PlanRecord, lowered: Lowered, sizes: BatchSizes) -> ModuleType:
    """Its source, run; ``inspect`` and tracebacks find the lines."""
    text = emit_program(lowered, f"the forward alone, of {sizes}", record.extensions)
    name = f"autoplan_forward_{abs(hash(text))}"
    file = f"<{name}>"
    module = ModuleType(name)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module
