"""What all ranks have said of a step that they don't agree on -> the error that names the ranks and what differs."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from autoplan.errors import AutoplanError, InputsError
from autoplan.runtime.elastic.rendezvous import ranks_text


@dataclass(frozen=True)
class Facts:
    """What one rank is about to do.

    call, step, added   see ``agreement.Call``
    form, rows          "whole", "own" …, and how many rows were given
    place               its data rank
    shared, split       hashes by input: of what is the same on all ranks, of what data ranks have rows of
    error               why it can't
    tokens              in a row
    """

    call: str
    step: int
    added: int
    form: str
    rows: int
    place: int
    shared: Mapping[str, int] = field(default_factory=dict)
    split: Mapping[str, int] = field(default_factory=dict)
    error: AutoplanError | None = None
    tokens: int = 0


def error_of(ranks: Sequence[Facts]) -> InputsError:
    """The first thing in which ranks differ, in the order in which one would look for it."""
    failed = next(((rank, facts.error) for rank, facts in enumerate(ranks) if facts.error is not None), None)
    if failed is not None:
        rank, error = failed
        return InputsError(f"the batch of rank {rank}: {error.value}", error.cause, error.remedy)
    found = (
        of_calls(ranks)
        or values_differ(ranks, lambda facts: facts.shared, "every rank takes all of it")
        or (values_differ(ranks, lambda facts: facts.split, WHOLE) if ranks[0].form == "whole" else of_peers(ranks))
    )
    return found or of_copies(ranks)


WHOLE = "every rank was given a whole batch, and they aren't the same: one may be a batch behind, or shuffle by itself"


def of_calls(ranks: Sequence[Facts]) -> InputsError | None:
    """Where ranks are at different places of their scripts, or were given other amounts."""
    alike = "let every rank run the same calls"
    for of, cause in (
        (lambda f: f"program.{f.call}", "all ranks have to call the same, a save or an evaluation too"),
        (lambda f: f"step {f.step + 1}", "they have taken different numbers of optimizer steps"),
        (lambda f: f"gradients of {f.added} batches", "some have added up more batches than others since the update"),
    ):
        if len(groups(ranks, of)) > 1:
            return InputsError(said(ranks, of), cause, alike)
    if len(groups(ranks, amount)) > 1:
        cause = "rows would be counted twice, or not at all"
        return InputsError(said(ranks, amount), cause, "give every rank the whole batch, or every rank its own rows")
    if len(groups(ranks, lambda f: f.tokens)) > 1:
        value = said(ranks, lambda f: f"rows of {f.tokens} tokens")
        remedy = "pad each batch alike on all ranks, or give every rank the whole batch"
        return InputsError(value, "a step computes rows of one length", remedy)
    return None


def amount(facts: Facts) -> str:
    return {
        "whole": f"the whole batch of {facts.rows} rows",
        "own": f"{facts.rows} rows of its own",
        "own, as was said": f"{facts.rows} rows of its own with rows='own'",
        "either": f"{facts.rows} rows",
    }.get(facts.form, "a batch")


def values_differ(
    ranks: Sequence[Facts], of: Callable[[Facts], Mapping[str, int]], cause: str
) -> InputsError | None:
    """Where an input that all are to have alike differs."""
    for name in of(ranks[0]):
        found = groups(ranks, lambda facts, name=name: of(facts)[name])  # type: ignore[misc]
        if len(found) > 1:
            apart = " and ".join(map(ranks_text, found.values()))
            value = f"{name} of step {ranks[0].step + 1} differs between {apart}"
            return InputsError(value, cause, "give every rank the same batch, in the same order")
    return None


def of_peers(ranks: Sequence[Facts]) -> InputsError | None:
    """Where ranks that compute the same rows were given different ones."""
    for place in sorted({facts.place for facts in ranks}):
        for name in ranks[0].split:
            peers = {rank: facts.split[name] for rank, facts in enumerate(ranks) if facts.place == place}
            if len(set(peers.values())) > 1:
                apart = [[rank for rank in peers if peers[rank] == one] for one in dict.fromkeys(peers.values())]
                return InputsError(
                    f"{name} of step {ranks[0].step + 1} differs between {' and '.join(map(ranks_text, apart))}",
                    f"they are data rank {place} together, and split the work on the same rows",
                    "give ranks whose program.axes['dp'].rank is the same the same rows",
                )
    return None


def of_copies(ranks: Sequence[Facts]) -> InputsError:
    """Where data ranks have the same rows."""
    ways = len({facts.place for facts in ranks})
    found = groups(ranks, lambda facts: tuple(facts.split.values()))
    return InputsError(
        f"the same {ranks[0].rows} rows on {' and on '.join(map(ranks_text, found.values()))}",
        f"the plan takes them as the own rows of {ways} data ranks, and would count them more than once; a short last "
        "batch looks so, and a sampler that doesn't know its rank",
        "give each data rank its own rows; or say program.step(batch, rows='whole') of a short last batch, and "
        "rows='own' where equal rows are meant",
    )


def groups(ranks: Sequence[Facts], of: Callable[[Facts], Hashable]) -> dict[Hashable, list[int]]:
    """The ranks of each value, the largest group first."""
    found: dict[Hashable, list[int]] = {}
    for rank, facts in enumerate(ranks):
        found.setdefault(of(facts), []).append(rank)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def said(ranks: Sequence[Facts], of: Callable[[Facts], Hashable]) -> str:
    return ", ".join(f"{value} on {ranks_text(members)}" for value, members in groups(ranks, of).items())
