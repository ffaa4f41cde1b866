"""An activation's value and gradients against torch's autograd: every function with its numbers and keywords, at kinks,
composed at random, as transformers' mixtures have them, and below modes that see every operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as drawn
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from autoplan.ops.experts import FUNCTIONS, activation_function, experts
from autoplan.ops.experts.activation import counts, value_and_gradients, value_and_made
from autoplan.ops.experts.derivatives import DERIVATIVES
from autoplan.trace.mixtures import activation_of
from tests.support.sampling import examples

SWIGLU = "mul(silu(gate), up)"
CASES = {
    "abs": ["abs(x)"],
    "add": ["add(x, y)", "add(x, y, alpha=3)", "add(x, 2)", "add(2, x)", "add(x, 2.5, 3)", "add(x, x)", "add(x, row)"],
    "clamp": [
        "clamp(x, -0.5, 0.75)", "clamp(x, None, 0.75)", "clamp(x, min=-0.5)", "clamp(x, max=0.75)", "clamp(x, 1, -1)",
        "clamp(x, y, z)", "clamp(x, y)", "clamp(x, None, z)", "clamp(x, max=z)", "clamp(x, max=z, min=y)",
        "clamp(x, row, y)",
    ],
    "clamp_max": ["clamp_max(x, 0.5)", "clamp_max(x, y)", "clamp_max(x, max=row)"],
    "clamp_min": ["clamp_min(x, 0.5)", "clamp_min(x, y)", "clamp_min(x, min=row)"],
    "div": [
        "div(x, p)", "div(x, 3)", "div(3, p)", "div(x, p, rounding_mode=None)", "div(x, 2.0, rounding_mode=None)",
        "div(x, p, rounding_mode='floor')", "div(row, p)", "div(p, row)",
    ],
    "elu": ["elu(x)", "elu(x, 0.5)", "elu(x, 1.6732632423543772, 1.0507009873554805)", "elu(x, 1.0, 1.0, 2.0)"],
    "erf": ["erf(x)"],
    "exp": ["exp(x)"],
    "gelu": ["gelu(x)", "gelu(x, approximate='tanh')", "gelu(x, approximate='none')"],
    "hardswish": ["hardswish(mul(x, 3))"],
    "hardtanh": ["hardtanh(x)", "hardtanh(x, -0.5, 0.25)"],
    "leaky_relu": ["leaky_relu(x)", "leaky_relu(x, 0.2)"],
    "log": ["log(p)"],
    "log1p": ["log1p(p)"],
    "maximum": ["maximum(x, y)", "maximum(x, x)", "maximum(row, x)"],
    "minimum": ["minimum(x, y)", "minimum(x, x)", "minimum(row, x)"],
    "mish": ["mish(x)"],
    "mul": ["mul(x, y)", "mul(x, 1.702)", "mul(2, x)", "mul(x, x)", "mul(x, row)", "mul(row, x)"],
    "neg": ["neg(x)"],
    "pow": [
        "pow(x, 2)", "pow(x, 3.0)", "pow(x, 0)", "pow(x, 1)", "pow(p, -0.5)", "pow(2, x)", "pow(0.5, x)", "pow(0, p)",
        "pow(0, x)", "pow(-2.0, x)", "pow(p, x)", "pow(p, row)", "pow(row, 2)",
    ],
    "reciprocal": ["reciprocal(p)"],
    "relu": ["relu(x)"],
    "rsqrt": ["rsqrt(p)"],
    "rsub": ["rsub(x, y)", "rsub(x, y, alpha=2)", "rsub(x, 1)", "rsub(x, 1, 3)", "rsub(row, x)"],
    "sigmoid": ["sigmoid(x)"],
    "silu": ["silu(x)"],
    "slice": ["slice(x, 1, 0, 9223372036854775807, 2)", "slice(x, 1, 1, 3)", "slice(x)", "slice(x, -1, -3)",
              "slice(x, 0, None, 2)", "slice(x, 1, start=1, step=3)"],
    "softplus": ["softplus(x)", "softplus(x, 2.0)", "softplus(x, 3.0, 0.5)"],
    "sqrt": ["sqrt(p)"],
    "square": ["square(x)"],
    "sub": ["sub(x, y)", "sub(x, y, alpha=2)", "sub(x, 2)", "sub(2, x)", "sub(x, row)", "sub(row, x)"],
    "tanh": ["tanh(x)"],
}  # fmt: skip
"""Calls of every function. x, y and z are of either sign, p is positive, row is one row under all rows."""
OVERLOADS = [text for texts in CASES.values() for text in texts]


def sample(seed: int = 0, dtype: torch.dtype = torch.float64, rows: int = 4, width: int = 6) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    found = {name: torch.randn(rows, width, generator=random, dtype=torch.float64) for name in "xyz"}
    found["p"] = torch.rand(rows, width, generator=random, dtype=torch.float64) + 0.25
    found["row"] = torch.randn(1, width, generator=random, dtype=torch.float64)
    return {name: tensor.to(dtype) for name, tensor in found.items()}


def by_autograd(text: str, tensors: Mapping[str, Tensor], gradient: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """The text as Python over ATen's functions, and autograd's gradients."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    scope: dict[str, Any] = {name: getattr(torch.ops.aten, name) for name in FUNCTIONS}
    value = eval(text, scope, leaves)
    return value.detach(), torch.autograd.grad(value, list(leaves.values()), gradient, materialize_grads=True)


def assert_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def compare(text: str, tensors: Mapping[str, Tensor]) -> None:
    names = tuple(tensors)
    plain = activation_function(text, names)(*tensors.values())
    gradient = torch.linspace(-1, 2, plain.numel(), dtype=plain.dtype).reshape(plain.shape)
    value, ours = value_and_gradients(text, names)(list(tensors.values()), gradient)
    want, theirs = by_autograd(text, tensors, gradient)
    assert_same([plain], [value])
    once, made = value_and_made(text, names, keep=True)(list(tensors.values()))
    again, with_kept = value_and_gradients(text, names)(list(tensors.values()), gradient, made)
    assert_same([once, again, *with_kept], [value, value, *ours])
    for one, other in ((value, want), *zip(ours, theirs, strict=True)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("text", OVERLOADS)
def test_gradients_are_those_of_autograd(text: str) -> None:
    compare(text, sample())


@pytest.mark.parametrize("text", [t for t in OVERLOADS if "row" not in t])
def test_subgradients_at_kinks_are_those_of_autograd(text: str) -> None:
    """At zero, at bounds, at ties, and where a power has no derivative of its own; infinities and NaN pass alike."""
    points = torch.tensor([0.0, -0.0, 0.5, -0.5, 0.25, 0.75, 1, -1, 3, torch.inf, -torch.inf, torch.nan]).double()
    one, other, third = torch.cartesian_prod(points, points, points).t().contiguous()  # ATen's loops differ at NaN
    shape = (-1, len(points))
    compare(text, {"x": one.reshape(shape), "y": other.reshape(shape), "z": third.reshape(shape),
                   "p": other.abs().reshape(shape)})  # fmt: skip


def test_every_function_is_among_the_calls() -> None:
    assert set(CASES) == FUNCTIONS
    assert all(text.startswith(name + "(") for name, texts in CASES.items() for text in texts)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_argument_that_may_be_a_tensor_has_a_rule(name: str) -> None:
    """As ATen's schemas have it, all overloads together."""
    packet = getattr(torch.ops.aten, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    plain = [s for s in schemas if [str(r.type) for r in s.returns] == ["Tensor"] and not s.is_mutable]
    arguments = {a.name for s in plain for a in s.arguments if str(a.type) in ("Tensor", "Optional[Tensor]")}
    assert arguments == set(DERIVATIVES[name])


ONE = "abs elu erf gelu hardswish hardtanh leaky_relu mish neg relu sigmoid silu softplus tanh".split()
TWO = ["add", "sub", "rsub", "mul", "maximum", "minimum"]


def calls(inner: drawn.SearchStrategy[str]) -> drawn.SearchStrategy[str]:
    numbers = drawn.sampled_from(["2", "0.5", "-1.25", "1.702"])
    return drawn.one_of(
        drawn.builds("{}({})".format, drawn.sampled_from(ONE), inner),
        drawn.builds("{}({}, {})".format, drawn.sampled_from(TWO), inner, inner),
        drawn.builds("{}({}, {})".format, drawn.sampled_from(["add", "sub", "rsub", "mul"]), inner, numbers),
        drawn.builds("{}({}, {})".format, drawn.sampled_from(["add", "sub", "mul"]), numbers, inner),
        drawn.builds("clamp({}, -0.75, max={})".format, inner, inner.map(lambda _: "1.5")),
        drawn.builds("pow({}, 2)".format, inner),
        drawn.builds("pow(2, tanh({}))".format, inner),
        drawn.builds("div({}, exp(tanh({})))".format, inner, inner),
        drawn.builds("log1p(square({}))".format, inner),
        drawn.builds("rsqrt(add(square({}), 1))".format, inner),
    )


@examples(100)
@given(drawn.recursive(drawn.sampled_from(["x", "y", "row"]), calls, max_leaves=8), drawn.integers(0, 9))
def test_compositions_have_the_gradients_of_autograd(text: str, seed: int) -> None:
    compare(text, {name: sample(seed)[name] for name in ("x", "y", "row")})


def gpt_oss() -> str:
    text = activation_of(GptOssExperts(GptOssConfig(hidden_size=8, intermediate_size=16, num_local_experts=4)))
    assert text is not None
    return text


@pytest.mark.parametrize("text", [SWIGLU, "mul(gelu(gate, approximate='tanh'), up)", "square(relu(gate))", None])
def test_activations_of_mixtures_have_the_gradients_of_autograd(text: str | None) -> None:
    """The last is GPT-OSS's: gate and up interleaved, clamped, gated with a factor of its own."""
    tensors = sample(rows=16, width=12)
    if text is None:
        compare(gpt_oss(), {"x": 9 * tensors["x"]})
    else:
        compare(text, {"gate": 3 * tensors["x"], "up": tensors["y"]})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("text", [SWIGLU, "mul(gelu(gate, approximate='tanh'), up)", None])
def test_activations_of_mixtures_have_the_bits_of_vjp(text: str | None, dtype: torch.dtype) -> None:
    """Where gradients of gradients aren't asked for, as in the operator."""
    drawn_ = sample(rows=64, width=32, dtype=dtype)
    names, tensors = (("gate", "up"), (drawn_["x"], drawn_["y"])) if text else (("x",), (9 * drawn_["x"],))
    function = activation_function(text or gpt_oss(), names)
    gradient = sample(seed=1, rows=64, width=32 if text else 16, dtype=dtype)["x"]
    with torch.no_grad():
        want, back, *_ = torch.func.vjp(function, *tensors)
        theirs = back(gradient)
    value, ours = value_and_gradients(text or gpt_oss(), names)(tensors, gradient)
    assert torch.equal(value, want) and value.dtype == dtype
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_what_a_text_does_not_read_has_a_gradient_of_zeros() -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    value, gradients = value_and_gradients("gate", ("gate", "up"))((x, y), 2 * x)
    assert torch.equal(value, x) and torch.equal(gradients[0], 2 * x) and torch.equal(gradients[1], 0 * y)


@pytest.mark.parametrize("text", ["2", "gate + up", "silu(down)", "exp(mul(gate, gate.data))"])
def test_a_text_that_is_no_call_has_no_gradient(text: str) -> None:
    with pytest.raises(ValueError, match="no call of a known function"):
        value_and_gradients(text, ("gate", "up"))


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_call_that_stands_twice_is_computed_once() -> None:
    """Forward and backward: a clamped gate that is also under the sigmoid has one clamp and one mask."""
    x, gradient, text = sample(rows=8, width=12)["x"], sample(rows=8)["y"], gpt_oss()
    with Counting() as forward:
        activation_function(text, ("x",))(x)
    with Counting() as both:
        value_and_gradients(text, ("x",))((x,), gradient)
    assert text.count("clamp") == 3
    assert forward.called == both.called[: len(forward.called)]
    assert forward.called.count("aten.clamp.default") == 2 and both.called.count("aten.slice_backward.default") == 2


def test_gated_silu_is_five_kernels_and_three_where_what_it_made_is_kept() -> None:
    x = sample()["x"]
    _, made = value_and_made(SWIGLU, ("gate", "up"), keep=True)((x, x))
    for kept, forward in (((), ["aten.mul.Tensor", "aten.silu.default"]), (made, [])):
        with Counting() as mode:
            value_and_gradients(SWIGLU, ("gate", "up"))((x, x), x, kept)
        assert sorted(mode.called) == sorted(["aten.mul.Tensor"] * 2 + ["aten.silu_backward.default"] + forward)


@pytest.mark.parametrize(("text", "names", "bytes"), [
    (SWIGLU, ("gate", "up"), 2), ("square(relu(gate))", ("gate", "up"), 2), ("mul(2, add(x, 1))", ("x",), 1),
    ("div(exp(x), tanh(neg(x)))", ("x",), 3), ("mul(x, div(sub(x, 1), 2))", ("x",), 2), (None, ("x",), 5),
])  # fmt: skip
def test_what_is_kept_is_what_autograd_keeps(text: str | None, names: tuple[str, ...], bytes: int) -> None:
    """Beside the tensors that are given, and with the value, which the next product reads; in their number."""
    tensors, text = sample(rows=16, width=12), text or gpt_oss()
    given = [tensors[letter].requires_grad_() for letter, _ in zip("xy", names, strict=False)]
    own, found = {x.untyped_storage().data_ptr() for x in given}, dict[int, Tensor]()
    scope: dict[str, Any] = {name: getattr(torch.ops.aten, name) for name in FUNCTIONS}

    def note(x: Tensor) -> Tensor:
        if x.is_floating_point() and x.ndim:  # a number is a tensor, too
            found[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        value = eval(text, scope, dict(zip(names, given, strict=True)))
        found[value.untyped_storage().data_ptr()] = value
    _, made = value_and_made(text, names, keep=True)(given)
    assert len(made) == len(found.keys() - own) == counts(text, names).kept == bytes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # the experts one by one, and grouped
@pytest.mark.parametrize("mode", [Counting, lambda: FlopCounterMode(display=False)])
@pytest.mark.parametrize("text", [SWIGLU, "mul(relu(gate), up)"])
def test_a_mixture_runs_under_a_dispatch_mode(text: str, mode: Callable[[], Any], dtype: torch.dtype) -> None:
    """With the bits that it has without. FlopCounterMode takes operators apart: silu's backward rounds otherwise then,
    in any module, and relu's does not."""
    random = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=dtype).requires_grad_()

    hidden, scores, index = leaf(6, 8), leaf(6, 2), torch.randint(-1, 4, (6, 2), generator=random)
    gate, up, down = leaf(4, 16, 8), leaf(4, 16, 8), leaf(4, 8, 16)

    def step() -> list[Tensor]:
        result = experts(hidden, index, scores, [gate, up], down, [], text, False)
        return [result, *torch.autograd.grad(result.square().sum(), [hidden, scores, gate, up, down])]

    want = step()
    with mode():
        got = step()
    if mode is Counting or text != SWIGLU:
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    rounding = 16 * torch.finfo(dtype).eps
    assert all((one - other).abs().max() <= rounding * other.abs().max() for one, other in zip(got, want, strict=True))
