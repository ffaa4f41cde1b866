"""How an operator is written in Python.

A line in the table for each operator that reads better as a method, a function of ``torch.nn.functional`` or a sign;
any other operator is called as ``torch.ops.aten.name.overload(...)``, which is always right.
"""

from collections.abc import Callable, Mapping, Sequence

from autoplan.rules.registry import WHOLE

Spelling = Callable[[Sequence[str], Mapping[str, str], int], str]

# operator name without overload -> (sign)
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
         "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "__and__": "&", "__or__": "|"}  # fmt: skip
METHODS = frozenset(
    "transpose permute expand unsqueeze squeeze mean sum softmax log_softmax pow rsqrt sqrt exp log tanh sigmoid sin "
    "cos neg abs cumsum amax amin clamp masked_fill logical_not logical_and logical_or bitwise_not reciprocal "
    "square erf detach".split()
)
FUNCTIONAL = frozenset(
    "linear gelu silu relu elu leaky_relu softplus hardswish layer_norm rms_norm group_norm max_pool2d avg_pool2d "
    "adaptive_avg_pool2d mish".split()
)
CREATION = frozenset(["arange", "full", "zeros", "ones", "tril_indices", "triu_indices"])
SHAPED = frozenset(["expand", "permute"])  # take their sizes or dims one by one


def spell(op: str, args: Sequence[str], kwargs: Mapping[str, str], rank: int) -> str:
    """The source of one call.

    op      "aten.linear.default"
    args, kwargs  sources of its arguments
    rank    number of dims of its first tensor, for indexing
    """
    op = op.removeprefix(WHOLE)
    namespace, name, overload = op.split(".", 2) if op.count(".") >= 2 else (*op.split(".", 1), "")
    if name in ("attention_by_rank", "grouped_query_attention"):
        return attention(args, kwargs, rank, name)
    if namespace == "autoplan":
        return call(name, args, kwargs)
    special = SPECIAL.get(name)
    if namespace == "aten" and special is not None:
        return special(args, kwargs, rank)
    if namespace == "aten" and name in SIGNS and len(args) == 2 and not kwargs:
        return f"{operand(args[0])} {SIGNS[name]} {operand(args[1])}"
    if namespace == "aten" and name in CREATION:
        return call(f"torch.{name}", args, {**kwargs, "device": "device"})
    if namespace == "aten" and name in METHODS and is_value(args[0]):
        rest = unpack(args[1]) if name in SHAPED else args[1:]
        return call(f"{args[0]}.{name}", rest, kwargs)
    if namespace == "aten" and name in FUNCTIONAL:
        return call(f"F.{name}", args, kwargs)
    return call(f"torch.ops.{namespace}.{name}.{overload}", args, kwargs)


def is_value(source: str) -> bool:
    """Whether the source names a tensor, and so has methods: a number stands first in 2 ** x."""
    return source.replace(".", "_").isidentifier()


def operand(source: str) -> str:
    """As an operand of a sign: a product of sizes is one number."""
    return f"({source})" if " " in source else source


def call(function: str, args: Sequence[str], kwargs: Mapping[str, str]) -> str:
    return f"{function}({', '.join([*args, *(f'{k}={v}' for k, v in kwargs.items())])})"


def unpack(source: str) -> list[str]:
    """"(1, 2)" -> ["1, 2"]: sizes one by one."""
    return [source.strip("()").rstrip(",") or "()"]


def index(args: Sequence[str], kwargs: Mapping[str, str], rank: int) -> str:
    """``x[:, 2:4]``, or ``x[..., 2:4]`` on the last dim; with a step where there is one."""
    dim = int(args[1])
    part = ":".join(args[2:])
    before = "..., " if dim == rank - 1 and dim > 1 else ":, " * dim
    return f"{args[0]}[{before}{part}]"


def convolution(args: Sequence[str], kwargs: Mapping[str, str], rank: int) -> str:
    """``F.conv2d`` and its kin where the convolution is a plain one."""
    x, w, b, stride, padding, dilation, transposed, _, groups = args
    if transposed == "False" and rank in (3, 4, 5):
        return call(f"F.conv{rank - 2}d", (x, w, b, stride, padding, dilation, groups), {})
    return call("torch.convolution", args, {})


def attention(
    args: Sequence[str], kwargs: Mapping[str, str], rank: int, function: str = "F.scaled_dot_product_attention"
) -> str:
    names = ("attn_mask", "dropout_p", "is_causal")
    plain = {"attn_mask": "None", "dropout_p": "0.0", "is_causal": "False", "scale": "None", "enable_gqa": "False"}
    given = {**dict(zip(names, args[3:], strict=False)), **kwargs}
    told = {key: value for key, value in given.items() if plain.get(key) != value}
    return call(function, args[:3], told)


SPECIAL: dict[str, Spelling] = {
    "reshape": lambda args, kwargs, rank: call(f"{args[0]}.reshape", unpack(args[1]), kwargs),
    "to": lambda args, kwargs, rank: call(f"{args[0]}.to", args[1:], kwargs),
    "slice": index,
    "select": index,
    "cat": lambda args, kwargs, rank: call("torch.cat", args[:1], {"dim": args[1] if len(args) > 1 else "0"}),
    "embedding": lambda args, kwargs, rank: call("F.embedding", (args[1], args[0], *args[2:]), {}),
    "where": lambda args, kwargs, rank: call("torch.where", args, kwargs),
    "convolution": convolution,
    "scaled_dot_product_attention": attention,
    "constant_pad_nd": lambda args, kwargs, rank: call(
        "F.pad", args[:2], {"value": args[2]} if len(args) > 2 else {}
    ),
}
