"""How operators are named: "aten.linear.default" for what a user gives as an overload, a packet, a custom operator of
``torch.library``, or in words."""

import torch
from torch.library import CustomOpDef

from autoplan.errors import RuleError

OWN = "autoplan"  # the namespace of the canonical operators that ATen lacks: these have no overloads


def names_of(op: object) -> tuple[str, ...]:
    """The canonical names of every overload that is meant.

    op  torch.ops.mine.scale.default, torch.ops.mine.scale (all its overloads), what torch.library.custom_op or
        triton_op gives, or a text: "mine::scale", "mine.scale", "mine.scale.default"

    RuleError for anything else.
    """
    if isinstance(op, torch._ops.OpOverload):  # has no public name, but is what torch.ops gives
        return (str(op),)
    if isinstance(op, torch._ops.OpOverloadPacket):  # likewise
        return tuple(f"{op}.{overload}" for overload in op.overloads())
    if isinstance(op, CustomOpDef):
        return names_in_words(op._qualname)  # the definition tells its name nowhere else
    if isinstance(op, str):
        return names_in_words(op)
    raise RuleError(
        f"operator {op!r}",
        f"a {type(op).__name__} names no operator of torch: a Python function is traced through, not called",
        "give torch.ops.<namespace>.<name>, what torch.library.custom_op made, or its name as a text",
    )


def names_in_words(text: str) -> tuple[str, ...]:
    """ "mine::scale" -> ("mine.scale.default",); every overload where torch knows the operator and none is named."""
    name = text.replace("::", ".")
    namespace, *rest = name.split(".")
    if not namespace or not all(rest) or len(rest) not in (1, 2):
        cause = "an operator's name is a namespace, a name, and an overload where it has several"
        raise RuleError(f"operator {text!r}", cause, "write for example 'mine::scale' or 'mine.scale.default'")
    if namespace == OWN or len(rest) == 2:
        return (name,)
    packet = getattr(getattr(torch.ops, namespace), rest[0], None)
    return (f"{name}.default",) if packet is None else tuple(f"{name}.{overload}" for overload in packet.overloads())


def known_overload(op: str) -> torch._ops.OpOverload | None:
    """The operator of a canonical name; None where torch knows none of that name (yet)."""
    parts = op.split(".")
    if len(parts) != 3:
        return None
    namespace, name, overload = parts
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return None if packet is None else getattr(packet, overload, None)
