"""What can be wrong with a rule that a user writes, told before anything is planned with it."""

import inspect
from collections.abc import Iterator, Mapping, Sequence

from autoplan.errors import AutoplanError, RuleError
from autoplan.ir.graph import Argument, Node, TensorType
from autoplan.rules.notation import Rule, factor_sizes, parse_terms
from autoplan.rules.registry import OURS, registered, typed_arguments

REDUCTIONS = ("sum", "mean", "max")
COSTS = ("matmul", "attention", "experts", "memory", "free")


def check_users_rule(node: Node, types: Mapping[str, TensorType]) -> None:
    """RuleError where the rule that a user registered for a node's operator is none, or not one for these shapes."""
    function = registered().get(node.op)
    if function is None or function.__module__.startswith(OURS):
        return
    where = f"the rule of {node.op}, {function.__qualname__} of {function.__module__}"
    args, kwargs = typed_arguments(node, types)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        cause = f"the operator is called with {called(args, kwargs)}: {error}"
        raise RuleError(where, cause, "let it take the operator's own arguments, defaults included") from None
    operands = [types[name] for name in node.operands]
    shapes = shapes_text(operands, node.type)
    try:
        rule = function(*args, **kwargs)
    except AutoplanError:
        raise
    except Exception as error:  # whatever a user's function comes to
        cause = f"it fails with {type(error).__name__}: {error}; the operator is {shapes}"
        raise RuleError(where, cause, "let it return an autoplan.Rule for each shape that the model has") from error
    if not isinstance(rule, Rule):
        raise RuleError(where, f"it returns a {type(rule).__name__}", "return an autoplan.Rule")
    for cause, remedy in faults(rule, operands, node.type):
        raise RuleError(f"{where}, {rule.spec!r}", f"{cause}; the operator is {shapes}", remedy)


def called(args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> str:
    """The arguments in short: "(a tensor, 2.0, dim=1)"."""
    words = ["a tensor" if isinstance(a, TensorType) else repr(a) for a in args]
    words += [f"{key}={'a tensor' if isinstance(a, TensorType) else repr(a)}" for key, a in kwargs.items()]
    return f"({', '.join(words)})"


def shapes_text(operands: Sequence[TensorType], result: TensorType) -> str:
    """ "[4, 8], [8] -> [4, 8]" """
    return f"{', '.join(str(list(x.shape)) for x in operands)} -> {list(result.shape)}"


def faults(rule: Rule, operands: Sequence[TensorType], result: TensorType) -> Iterator[tuple[str, str]]:
    """(cause, remedy) of everything that is wrong; what comes first may be why the rest can't be read."""
    yield from notation_faults(rule.spec)
    yield from shape_faults(rule, operands, result)
    yield from argument_faults(rule, len(operands))
    for strategy in rule.extra:
        states = [*zip(strategy.inputs, operands, strict=False), (strategy.output, result)]
        inside = all(state.kind != "S" or 0 <= state.dim < len(kind.shape) for state, kind in states)
        if len(strategy.inputs) != len(operands) or not inside:
            said = f"{', '.join(map(str, strategy.inputs))} -> {strategy.output}"
            yield f"the strategy {said} of extra has other operands or dims", "give one state for each operand"


def notation_faults(spec: str) -> Iterator[tuple[str, str]]:
    example = "write the operands' dims, an arrow, the result's: 'b s k, n k -> b s n'"
    if spec.count("->") != 1:
        yield "it has no arrow between operands and result", example
        return
    for term in spec.replace("->", ",").split(","):
        try:
            parse_terms(term)
        except AssertionError:
            yield f"parentheses don't match in {term.strip()!r}", example
            return


def shape_faults(rule: Rule, operands: Sequence[TensorType], result: TensorType) -> Iterator[tuple[str, str]]:
    if len(rule.operands) != len(operands):
        names, remedy = len(rule.operands), "name the dims of each, separated by commas; a tensor without dims is []"
        yield f"it names {names} operand{'s' * (names != 1)}, and {len(operands)} tensors are read", remedy
        return
    named = [*((f"operand {i}", t) for i, t in enumerate(rule.operands)), ("the result", rule.result)]
    for (what, terms), kind in zip(named, (*operands, result), strict=True):
        if len(terms) != len(kind.shape):
            dims = f"{len(terms)} dim{'s' * (len(terms) != 1)}"
            yield f"{what} has {dims} there", "name each dim once, a dim of size one that broadcasts as 1"
            return
    try:
        factor_sizes(rule, operands, result)
    except AssertionError as error:
        yield str(error), "dims of one name have one size; a compound dim's factors multiply up to it (sizes=)"
    except KeyError as error:
        yield f"the size of factor {error} is nowhere", f"give it: sizes={{{error}: ...}}"


def argument_faults(rule: Rule, operands: int) -> Iterator[tuple[str, str]]:
    unknown = sorted(rule.whole_factors - set(rule.factors))
    if unknown:
        yield f"whole names {', '.join(map(repr, unknown))}, which it lacks", "name factors of the notation"
    if any(i not in range(operands) for group in rule.linear for i in group):
        yield f"linear={rule.linear} names operands that aren't there", f"positions are from 0 to {operands - 1}"
    if any(s != "out" and s not in range(operands) for s in rule.saved):
        yield f"saved={rule.saved} names operands that aren't there", "give positions of operands, or 'out'"
    if rule.reduce not in REDUCTIONS:
        yield f"reduce={rule.reduce!r} is none", f"it is one of {', '.join(REDUCTIONS)}"
    if rule.cost not in COSTS:
        yield f"cost={rule.cost!r} is none", f"it is one of {', '.join(COSTS)}"
