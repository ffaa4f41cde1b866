"""What an operator keeps for its backward, seen by torch's hooks, beside what its rule says of it."""

from collections.abc import Iterator

import torch
from torch import Tensor

from autoplan.rules.check.case import Case, call_whole, copies
from autoplan.rules.registry import kept


def keeping_note(case: Case) -> Iterator[str]:
    """One line where the rule's ``saved`` isn't what autograd keeps: activations are then priced wrongly."""
    if not case.result.requires_grad:
        return
    found, more_bytes = seen(case)
    if {s for s in found if is_memory(case, s)} != {s for s in kept(case.rule, case.carries) if is_memory(case, s)}:
        yield (
            f"keeps {names(found)} for its backward, and the rule says {names(kept(case.rule, case.carries))}: "
            f"saved={found} prices its memory right"
        )
    told = case.rule.saved_bytes_per_element * case.result.numel()
    if abs(more_bytes - told) > 0.1 * max(more_bytes, told):
        per = more_bytes / max(1, case.result.numel())
        yield f"keeps {per:.3g} further bytes for each element of its result: saved_bytes_per_element={per:.3g}"


def is_memory(case: Case, saved: int | str) -> bool:
    """Whether it is more than a few numbers, which nobody prices."""
    size = case.result.numel() if saved == "out" else case.tensors[int(saved)].numel()
    return size > 1


def names(saved: tuple[int | str, ...]) -> str:
    words = ["its result" if s == "out" else f"operand {s}" for s in saved]
    return " and ".join(words) or "nothing"


def seen(case: Case) -> tuple[tuple[int | str, ...], int]:
    """(operands and result whose storages are kept; bytes of further storages)."""
    storages: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    tensors = copies(case.tensors)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = call_whole(case.node, tensors)
    own = {t.untyped_storage().data_ptr(): i for i, t in reversed(list(enumerate(tensors)))}
    operands = sorted(i for pointer, i in own.items() if pointer in storages)
    pointer = result.untyped_storage().data_ptr()
    out = ("out",) if pointer in storages and pointer not in own else ()
    known = {*own, pointer}
    return (*operands, *out), sum(size for p, size in storages.items() if p not in known)
