"""The rules of all operators, by name: where they are registered and found.

torch knows an operator by its name in the whole process, and so do we its rule: one operator has one rule. A rule that
a user registers goes with the plan by the name of the module that did so (``autoplan.rules.extensions``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from autoplan.errors import NoRuleError, RuleError
from autoplan.ir.graph import Argument, Node, TensorType, map_refs
from autoplan.rules.notation import (
    AxisStrategy,
    Rule,
    Term,
    broadcast,
    broadcast_shape,
    factor_sizes,
    kept,
    letters,
    parse_terms,
)
from autoplan.rules.operator_names import names_of

__all__ = [
    "WHOLE", "AxisStrategy", "Registry", "Rule", "Term", "broadcast", "broadcast_shape", "factor_sizes", "kept",
    "letters", "parse_terms", "registered", "replicated_rule", "rule", "rule_of", "typed_arguments",
    "unregister",
]  # fmt: skip

RuleFunction = Callable[..., Rule]
AnyRule = TypeVar("AnyRule", bound=RuleFunction)
Registry = Mapping[str, RuleFunction]
_RULES: dict[str, RuleFunction] = {}  # filled by the decorator at import, and by users' own rules

OURS = "autoplan."  # begins the name of every module of this package
WHOLE = "whole:"  # stands before the name of an operator without a rule that the user accepts as replicated


def rule(*ops: object, replace: bool = False) -> Callable[[AnyRule], AnyRule]:
    """Registers the rule of one or several operators.

    ops      each an overload or a packet of torch.ops, what torch.library.custom_op made, or a name: "mine::scale"
    replace  take the place of a rule that another function is; a function that is defined again does so anyway

    The function takes the operator's arguments, with a TensorType in place of each tensor, and returns a Rule.
    RuleError where an operator has a rule already, or is none.
    """
    names = [name for op in ops for name in names_of(op)]

    def register(function: AnyRule) -> AnyRule:
        for name in names:
            before = _RULES.get(name)
            if before is not None and not replace and place_of(before) != place_of(function):
                raise RuleError(
                    name,
                    f"it has a rule already, {before.__qualname__} of {before.__module__}",
                    "register yours with @autoplan.rule(..., replace=True), or take that one out by "
                    f"autoplan.unregister({name!r})",
                )
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def unregister(*ops: object) -> None:
    """Takes out the rules of operators. RuleError where one has none."""
    names = [name for op in ops for name in names_of(op)]
    for name in names:
        if name not in _RULES:
            raise RuleError(name, "it has no rule", "name an operator that @autoplan.rule registered")
    for name in names:
        del _RULES[name]


def place_of(function: RuleFunction) -> tuple[str, str]:
    """Where a function is defined: the same for one that a notebook's cell or a reloaded module defines again."""
    return function.__module__, function.__qualname__


def registered() -> Registry:
    """Every registered rule by operator name."""
    return MappingProxyType(_RULES)


def rule_of(node: Node, types: Mapping[str, TensorType]) -> Rule:
    """The rule of a node; NoRuleError, naming the operator, its module and how to write one, where there is none."""
    if node.op.startswith(WHOLE):
        return replicated_rule([types[name] for name in node.operands], node.type)
    function = _RULES.get(node.op)
    if function is None:
        raise NoRuleError(
            node.op,
            f"this operator, run by module {node.module or 'the root'!r}, has no rule that says how it may be split",
            f"register one: @autoplan.rule({node.op!r}) def my_rule(x, ...): return Rule('b n -> b n', whole='n'); or "
            f"accept it as replicated with constraints=[autoplan.replicated({node.op!r})]",
        )
    args, kwargs = typed_arguments(node, types)
    return function(*args, **kwargs)


def replicated_rule(operands: Sequence[TensorType], result: TensorType) -> Rule:
    """An operator of which nothing is known but that every rank may run it whole."""
    terms = [letters(kind, f"x{i}_") for i, kind in enumerate((*operands, result))]
    rule = Rule(f"{', '.join(terms[:-1])} -> {terms[-1]}")
    return replace(rule, whole=frozenset(rule.factors), saved=tuple(range(len(operands))))


def typed_arguments(node: Node, types: Mapping[str, TensorType]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a rule is called with: the operator's args and kwargs, each tensor's type in its place."""

    def typed(argument: Argument) -> Argument:
        return map_refs(argument, lambda ref: types[ref.name])

    return tuple(map(typed, node.args)), {key: typed(value) for key, value in node.kwargs}
