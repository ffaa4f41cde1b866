"""program.py with sizes of the batch read off its inputs, and whether it runs at others.

The plan is lowered at a few other sizes, and what differs between these programs is told by ``size_names``. What the
graph doesn't tell, or what another trace contradicts (``record.evaluable``), stays as planned: of rows, of tokens, or
both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoplan.emit.program_text import emit_program
from autoplan.emit.size_names import Sized, UnsizedError
from autoplan.errors import ParallelismError
from autoplan.ir.mesh import MICROBATCH
from autoplan.ir.record import PlanRecord
from autoplan.ir.typed_program import Lowered
from autoplan.lower.after_search import program_of
from autoplan.lower.resized import BatchSizes, planned_sizes, refusal, resized

ENOUGH = 2  # further sizes of a kind: a line through two of them that holds for the third is no chance


def program_text(record: PlanRecord, headline: str) -> str:
    """The text of program.py."""
    lowered = program_of(record)
    programs = fitting(record, lowered)
    return emit_program(lowered, headline, record.extensions, record.chosen, programs)


@dataclass(frozen=True)
class SizedProgram:
    """A plan's program as it stands, for steps at other sizes; what all of them are compared with is made once."""

    record: PlanRecord
    lowered: Lowered

    @cached_property
    def programs(self) -> list[Sized]:
        return fitting(self.record, self.lowered)

    @cached_property
    def text(self) -> str:
        return self.text_of(self.programs)

    def at(self, sizes: BatchSizes) -> Lowered:
        """The typed program of a step at other sizes, which program.py computes as it stands.

        ParallelismError, with the reason, where it doesn't.
        """
        planned, known = planned_sizes(self.record.model), self.record.evaluable
        if sizes.rows != planned.rows and known.training:
            raise refusal(sizes, known.training, planned)
        if sizes.tokens != planned.tokens and known.tokens:
            raise refusal(sizes, known.tokens, planned)
        if sizes.tokens < planned.tokens and sizes.tokens < known.least_tokens:
            raise refusal(sizes, f"it is known for {known.least_tokens} tokens at least", planned)
        if sizes.rows < known.least_trained:
            raise refusal(sizes, f"the model itself trains on {known.least_trained} rows at least", planned)
        found = resized(self.record, sizes)
        here = Sized(found, sizes.rows, max(sizes.tokens, 1))
        try:
            if self.text_of([*(self.programs or [sized(self.lowered, planned)]), here]) == self.text:
                return found
            cause = "program.py would compute it in other lines"
        except UnsizedError as error:
            cause = f"program.py has {error}, and nothing says what it follows from"
        raise refusal(sizes, cause, planned)

    def text_of(self, programs: Sequence[Sized]) -> str:
        """The program without what only a reader is told."""
        return emit_program(self.lowered, "", self.record.extensions, None, programs)


def fitting(record: PlanRecord, lowered: Lowered) -> list[Sized]:
    """The program at the planned and at other sizes, of rows and tokens, or of one of these where the other can't be
    told; [] where neither can."""
    rows, tokens = [*other_rows(record)], [*other_tokens(record)]
    first = sized(lowered, planned_sizes(record.model))
    for others in (rows + both(record, tokens) + tokens, rows, tokens):
        try:
            if others:
                emit_program(lowered, "", record.extensions, None, [first, *others])
                return [first, *others]
        except UnsizedError:
            continue
    return []


def sized(lowered: Lowered, sizes: BatchSizes) -> Sized:
    return Sized(lowered, sizes.rows, max(sizes.tokens, 1))


def other_rows(record: PlanRecord) -> Iterator[Sized]:
    """Two and three times the rows, in as many microbatches and in as many times more."""
    planned, count = planned_sizes(record.model), record.chosen.mesh.size(MICROBATCH)
    if record.evaluable.training:
        return
    for times in range(2, 2 + ENOUGH):
        for more in (1, times) if count > 1 else (1,):
            sizes = BatchSizes(times * planned.rows, planned.tokens)
            yield from made(record, sizes, more * count)


def other_tokens(record: PlanRecord) -> list[Sized]:
    """Fewer tokens, or more where no fewer divide as the plan splits them."""
    planned, count = planned_sizes(record.model), record.chosen.mesh.size(MICROBATCH)
    if not planned.tokens or record.evaluable.tokens:
        return []
    found: list[Sized] = []
    for sizes in map(lambda tokens: BatchSizes(planned.rows, tokens), further(planned.tokens)):
        found += made(record, sizes, count)
        if len(found) == ENOUGH:
            return found
    return []


def further(tokens: int) -> Iterator[int]:
    """Other numbers of tokens, those first that most likely divide."""
    tried = [tokens // 2, tokens // 4 * 3, tokens // 4, tokens // 8 * 7, 2 * tokens, 3 * tokens]
    yield from (t for t in dict.fromkeys(tried) if t > 1 and t != tokens)


def both(record: PlanRecord, tokens: Sequence[Sized]) -> list[Sized]:
    """Other rows and tokens at once: what grows with either may be their product."""
    planned, count = planned_sizes(record.model), record.chosen.mesh.size(MICROBATCH)
    return [*made(record, BatchSizes(2 * planned.rows, tokens[0].tokens), count)] if tokens else []


def made(record: PlanRecord, sizes: BatchSizes, microbatches: int) -> Iterator[Sized]:
    """The program at that size; nothing where it has none."""
    try:
        yield sized(resized(record, sizes, microbatches), sizes)
    except ParallelismError:
        return
