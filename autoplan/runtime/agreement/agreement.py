"""Whether all ranks are about to do the same: the same call, and a step on batches that belong together.

It is asked before any rank does it. Every rank is given the whole batch, and then the same one; or its data-parallel
rows, and then ranks that differ in other axes alone (tensor, pipeline) have the same rows. One all-reduce carries what
each has: which call, after how many steps, how many rows, and a hash of its inputs in the place of its data rank. It
takes the greatest of each and of its negative, so that every rank sees whether all are equal; only where they aren't do
they tell each other more.

A batch in the host's memory is hashed there, and hosts compare by themselves (gloo): no device is waited for. One on
the device is hashed on it, and so is any where the process group knows no tensors of the host's; then the step waits.

A batch that is repeated on all ranks alike, or rows that no other rank holds, can't be told from right ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from autoplan.errors import AutoplanError
from autoplan.runtime import host
from autoplan.runtime.agreement.disagreement import Facts, error_of
from autoplan.runtime.agreement.fingerprint import Fingerprint
from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.collectives.objects import from_all, meeting_place, unforeseen
from autoplan.runtime.data.microbatches import Given
from autoplan.runtime.program_spec import DATA

NOBODY = -(1 << 63)  # in the place of another data rank
CALLS = (
    "step", "step(accumulate=True)", "evaluate", "init_weights", "load_weights", "load_state_dict", "full_state_dict",
    "full_grads", "save_weights", "save_weights(trained_only=True)", "save_checkpoint", "load_checkpoint", "forward",
)  # fmt: skip
FORMS = ("", "whole", "own", "own, as was said", "either")


@dataclass(frozen=True)
class Call:
    """What a rank is about to do.

    name   one of CALLS
    step   optimizer steps taken before
    added  batches whose gradients are already there
    own    whether the user said that the rows are its own: data ranks may then have equal ones
    """

    name: str
    step: int
    added: int = 0
    own: bool = False


@dataclass(frozen=True)
class Asked:
    """What is on its way: the numbers and their negatives."""

    call: Call
    given: Given
    both: Tensor
    work: dist.Work | None


class Agreement:
    """Of one program's ranks; a collective of the whole world to ask."""

    def __init__(self, axes: Mapping[str, MeshAxis], device: torch.device) -> None:
        self.device, self.world, self.rank = meeting_place(device), dist.get_world_size(), dist.get_rank()
        data = axes.get(DATA)
        self.ways, self.place = (data.size, data.rank) if data is not None else (1, 0)
        self.fingerprint = Fingerprint(self.device)

    def on(self, call: Call, prepare: Callable[[], Given]) -> Given:
        """What ``prepare`` makes of this rank's batch, once all ranks' belong together.

        InputsError, on every rank, where it raises on any or they don't. On one rank there is nothing to ask.
        """
        if self.world == 1:
            return prepare()
        given, failed = None, None
        try:
            given = prepare()
        except Exception as error:  # told to all, or the others would wait for this rank
            failed = error
        form = self.agreed(call, given)
        if form is not None:
            assert given is not None
            return given if given.form != "either" else replace(given, form="whole" if form == "whole" else "own")
        raise self.told(call, given, failed)

    def called(self, call: Call) -> None:
        """InputsError, on every rank, where they aren't all about to do this: what needs no batch of the plan's."""
        self.on(call, lambda: Given({}, (), None, 0))

    def asked(self, call: Call, given: Given) -> Asked:
        """Begins to ask; no rank waits for another before ``heard``, which is for calls whose form shapes tell."""
        numbers = self.numbers(call, given)
        both = torch.cat([numbers, -numbers])
        return Asked(call, given, both, dist.all_reduce(both, dist.ReduceOp.MAX, async_op=True))

    def heard(self, asked: Asked) -> None:
        """InputsError, on every rank, where the batches don't belong together."""
        assert asked.work is not None, "this rank is one of the world"
        asked.work.wait()
        if self.form(*halves(asked.both)) is None:
            raise self.told(asked.call, asked.given, None)

    def agreed(self, call: Call, given: Given | None) -> str | None:
        """The form, where all ranks have the same call and form, and the same values where they are to have them; rows
        that are either are the whole batch where all ranks have the same. None where the ranks disagree."""
        return self.form(*self.extremes(self.numbers(call, given)))

    def form(self, least: list[int], greatest: list[int]) -> str | None:
        failed, form = greatest[0], FORMS[greatest[-self.ways - 2]]
        hashes = greatest[-self.ways :]
        if form == "either":
            form = "whole" if len(set(hashes)) == 1 else "own"
        if failed or least != greatest or (form == "whole" and len(set(hashes)) > 1):
            return None
        return form if form != "own" or not all(hashes.count(one) > 1 for one in hashes) else None

    def numbers(self, call: Call, given: Given | None) -> Tensor:
        """int64: failed, call, step, added, rows, tokens, form, the hash of what all share, one a data rank."""
        header = [int(given is None), CALLS.index(call.name), call.step, call.added]
        header += [0, 0, 0] if given is None else [given.rows, given.sizes.tokens, FORMS.index(form_of(call, given))]
        hashes: list[int | Tensor] = [NOBODY] * (1 + self.ways)
        if given is not None:
            hashes[0] = self.fingerprint.of([v for name, v in given.values.items() if name not in given.split])
            hashes[1 + self.place] = self.fingerprint.of([given.values[name] for name in given.split])
        known = [*header, *(NOBODY if isinstance(one, Tensor) else one for one in hashes)]
        numbers = torch.tensor(known, dtype=torch.int64, device=self.device)
        for at, one in enumerate(hashes, start=len(header)):
            if isinstance(one, Tensor):
                numbers[at] = one
        return numbers

    def extremes(self, numbers: Tensor) -> tuple[list[int], list[int]]:
        """The least and the greatest of each over all ranks: the one point at which a host waits for the others."""
        both = torch.cat([numbers, -numbers])  # NOBODY's negative is itself: there is no 2^63
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return halves(both)

    def told(self, call: Call, given: Given | None, failed: Exception | None) -> Exception:
        """The error that this rank raises, once all have said what they have."""
        error = failed if failed is None or isinstance(failed, AutoplanError) else unforeseen(failed)
        mine = Facts(call.name, call.step, call.added, "", 0, self.place, {}, {}, error)
        if given is not None:
            each = {name: int(self.fingerprint.of([value])) for name, value in given.values.items()}
            shared = {name: value for name, value in each.items() if name not in given.split}
            split = {name: each[name] for name in given.split}
            form, tokens = form_of(call, given), given.sizes.tokens
            mine = Facts(call.name, call.step, call.added, form, given.rows, self.place, shared, split, tokens=tokens)
        everyone = from_all(mine)
        return failed or error_of(everyone)


class AskedOnce(Agreement):
    """Of a program whose steps wait for no rank: what its first step's batches agree on holds for those after it."""

    first: Given | None = None

    def on(self, call: Call, prepare: Callable[[], Given]) -> Given:
        if not call.name.startswith("step"):
            return super().on(call, prepare)
        if self.first is None:
            self.first = super().on(call, prepare)
            return self.first
        given = prepare()
        return replace(given, form=self.first.form) if given.form == "either" else given


def halves(both: Tensor) -> tuple[list[int], list[int]]:
    """The least and the greatest of each number, of what is the greatest of these and of their negatives."""
    found = host.read(both)
    count = len(found) // 2
    return [-n if n != NOBODY else n for n in found[count:]], found[:count]


def form_of(call: Call, given: Given) -> str:
    return FORMS[3] if given.form == "own" and call.own else given.form or ""
