"""The pass that checks rules: every operator of a traced model has one, and users' own are rules."""

from collections.abc import Mapping, Sequence

from autoplan.errors import NoRuleError
from autoplan.ir.graph import Model, Node, TensorType
from autoplan.rules.check.suggest import suggested_rule
from autoplan.rules.faults import check_users_rule
from autoplan.rules.registry import WHOLE, registered


def check_rules(model: Model) -> None:
    """NoRuleError for operators without a rule, each named once, with a guess at the first one's; RuleError where a
    user's rule is none."""
    lacking: dict[str, tuple[Node, Mapping[str, TensorType]]] = {}
    places: list[tuple[Sequence[Node], Mapping[str, TensorType]]] = [
        (model.constants, model.types()), *((block.nodes, block.types()) for block in model.blocks),
    ]
    for nodes, types in places:
        for node in nodes:
            check_users_rule(node, types)
            if node.op not in registered() and not node.op.startswith(WHOLE):
                lacking.setdefault(node.op, (node, types))
    if lacking:
        (op, (node, types)), *others = lacking.items()
        raise NoRuleError(
            op + "".join(f" and {other}" for other, _ in others),
            f"this operator, run by module {node.module or 'the root'!r}, has no rule that says how it may be split",
            f"register one: @autoplan.rule({op!r}) {guess(node, types)}; or accept it as replicated with "
            f"constraints=[autoplan.replicated({op!r})]",
        )


def guess(node: Node, types: Mapping[str, TensorType]) -> str:
    """The text of a rule's function, as far as trying the operator tells."""
    found, name = suggested_rule(node, types), node.op.split(".")[1]
    if found is None:
        return f"def {name}_rule(x, ...): return autoplan.Rule('b n -> b n', whole='n')"
    by = "values on small tensors" if found.tried else "shapes alone"
    return (
        f"def {name}_rule(*args, **kwargs): return autoplan.{found}; this is a guess from its {by}, to be proved by "
        "autoplan.check_rule"
    )
