"""The loss and the count that it is divided by."""

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import I, R, S
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


@rule("autoplan.cross_entropy")
def cross_entropy(
    logits: TensorType, target: TensorType, count: TensorType, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Rule:
    """logits [.., v], target [..], count [] -> []: the sum over the valid targets, divided by the count.

    Split rows give partial sums, since the count is that of the whole batch. With the classes split the logits are
    never gathered: the greatest logit, the sum of exponentials and the target's logit are reduced instead.
    """
    rows = letters(target) if target.shape else ""
    split = AxisStrategy((S(len(logits.shape) - 1), R, R), I, body="vocab_parallel_cross_entropy", communicates=True)
    return Rule(f"{rows} v, {rows or '[]'}, [] -> []", whole="v", extra=(split,), saved=(0, 1))


@rule("autoplan.weighted_cross_entropy")
def weighted_cross_entropy(
    logits: TensorType, target: TensorType, weight: TensorType, counts: TensorType | None = None,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Rule:  # fmt: skip
    """logits [.., v], target [..], weight [v], counts [v] -> []: the weighted sum over the valid targets, divided by
    what their weights add up to, each class' weight times its count; not divided without counts.

    With the classes split, the weights are whole: they are few beside the logits, and the count needs all.
    """
    rows = letters(target) if target.shape else ""
    counted = ", v" if counts is not None else ""
    inputs = (S(len(logits.shape) - 1), *(R for _ in range(2 if counts is None else 3)))
    split = AxisStrategy(inputs, I, body="vocab_parallel_weighted_cross_entropy", communicates=True)
    return Rule(f"{rows} v, {rows or '[]'}, v{counted} -> []", whole="v", extra=(split,), saved=(0, 1))


@rule("autoplan.count_valid")
def count_valid(target: TensorType, ignore_index: int = -100) -> Rule:
    return Rule(f"{letters(target)} -> []")


@rule("autoplan.count_classes")
def count_classes(target: TensorType, classes: int, ignore_index: int = -100) -> Rule:
    """target [..] -> [v]: how many of the valid targets each class has."""
    return Rule(f"{letters(target)} -> v", whole="v")


@rule("autoplan.ctc_losses")
def ctc_losses(
    log_probs: TensorType, targets: TensorType, valid: TensorType | None, input_lengths: TensorType,
    target_lengths: TensorType, blank: int = 0, zero_infinity: bool = False,
) -> Rule:  # fmt: skip
    """log_probs [t, n, v], targets [n, s], valid [n, s], lengths [n] -> [n]: rows alone split.

    Kept beside: the likelihood of each prefix of the targets, with blanks between, at each time.
    """
    prefixes = 4.0 * log_probs.shape[0] * (2 * targets.shape[1] + 1)
    valid_too = ", n s" if valid is not None else ""
    spec = f"t n v, n s{valid_too}, n, n -> n"
    return Rule(spec, whole=frozenset("tvs"), saved=(0,), saved_bytes_per_element=prefixes)
