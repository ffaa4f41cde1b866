"""Normalisations: the dims over which they normalise are whole."""

from autoplan.ir.graph import TensorType
from autoplan.ir.layout import R, S
from autoplan.rules.registry import AxisStrategy, Rule, letters, rule


def last_dims(x: TensorType, shape: tuple[int, ...], *weights: TensorType | None) -> Rule:
    """A norm over the last dims with weights of their shape."""
    free = len(x.shape) - len(shape)
    rows = f"{letters(free)} " if free else ""
    normalised = letters(len(shape), "n")
    operands = [f"{rows}{normalised}", *(normalised for w in weights if w is not None)]
    return Rule(f"{', '.join(operands)} -> {operands[0]}", whole=frozenset(normalised.split()), saved=(0,))


@rule("aten.layer_norm.default")
def layer_norm(
    x: TensorType, shape: tuple[int, ...], weight: TensorType | None = None, bias: TensorType | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Rule:  # fmt: skip
    return last_dims(x, shape, weight, bias)


@rule("aten.rms_norm.default")
def rms_norm(x: TensorType, shape: tuple[int, ...], weight: TensorType | None = None, eps: float | None = None) -> Rule:
    return last_dims(x, shape, weight)


@rule("aten.group_norm.default")
def group_norm(
    x: TensorType, groups: int, weight: TensorType | None = None, bias: TensorType | None = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Rule:  # fmt: skip
    """x [b, c, ..], normalised for each row over a group of channels and all that follows: whole groups split."""
    space = letters(len(x.shape) - 2, "x") if len(x.shape) > 2 else ""
    data = f"b (g c) {space}".strip()
    vectors = ["(g c)" for t in (weight, bias) if t is not None]
    return Rule(
        f"{', '.join([data, *vectors])} -> {data}",
        sizes={"g": groups, "c": x.shape[1] // groups},
        whole=frozenset({"c", *space.split()}),
        factor_args=((1, "g"),),
        saved=(0,),
    )


@rule("aten.softmax.int", "aten.log_softmax.int")
def softmax(x: TensorType, dim: int, dtype: object = None) -> Rule:
    return Rule(f"{letters(x)} -> {letters(x)}", whole=f"d{dim % len(x.shape)}", saved=("out",))


@rule("autoplan.batch_norm")
def batch_norm(
    x: TensorType, weight: TensorType | None, bias: TensorType | None, running_mean: TensorType | None,
    running_var: TensorType | None, num_batches_tracked: TensorType | None, training: bool, momentum: float | None,
    eps: float,
) -> Rule:  # fmt: skip
    """x [b, c, ..] normalised for each channel.

    In training the statistics are the whole batch's, so a split batch needs a body that exchanges them; the channels
    stay whole where there are buffers to update, since those are stored whole on every rank. In evaluation everything
    splits.
    """
    vectors = [t for t in (weight, bias, running_mean, running_var) if t is not None]
    operands = [letters(x), *("d1" for _ in vectors), *(["[]"] if num_batches_tracked is not None else [])]
    spec = f"{', '.join(operands)} -> {letters(x)}"
    if not training:
        return Rule(spec, saved=(0,))
    states = (S(0), *(R for _ in operands[1:]))
    split = AxisStrategy(states, S(0), body="sync_batch_norm", communicates=True)
    free = {"d1"} if running_mean is None else set()
    return Rule(spec, whole=frozenset(letters(x).split()) - free, extra=(split,), saved=(0,))
