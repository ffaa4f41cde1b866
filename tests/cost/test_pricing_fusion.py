"""Kernels of a compiled block: read once, written once; in eager mode each operator for itself."""

from __future__ import annotations

import pytest
import torch

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cost import operators_of
from autoplan.cost.operators.fusion import apart, fused, kernels_of
from autoplan.ir.graph import Block, Node, Ref, TensorType, Typed
from autoplan.rules.registry import rule_of

WIDE, NARROW, WEIGHT = (TensorType(shape, "float32") for shape in ((64, 32), (64, 1), (32, 32)))
LINEAR, MEAN = "aten.linear.default", "aten.mean.dim"


def block(*operators: tuple[str, str, tuple[str, ...]], outputs: tuple[str, ...]) -> Block:
    """Operators (name, op, operands) over x and y [64, 32]; every linear has a weight of its own."""
    nodes, weights = [], []
    for name, op, operands in operators:
        args: tuple[object, ...] = tuple(Ref(operand) for operand in operands)
        if op == LINEAR:
            weights.append(Typed(f"{name}_weight", WEIGHT))
            args = (*args, Ref(f"{name}_weight"))
        if op == MEAN:
            args = (*args, (1,), True)
        kind = NARROW if op == MEAN or all(operand.startswith("narrow") for operand in operands) else WIDE
        nodes.append(Node(name, op, args, (), kind))
    return Block("Chain", (Typed("x", WIDE), Typed("y", WIDE)), (), tuple(weights), (), tuple(nodes), outputs)


def rules_of(found: Block) -> dict:
    return {node.name: rule_of(node, found.types()) for node in found.nodes}


def kernels(found: Block) -> set[frozenset[str]]:
    """The kernels, each as its operators."""
    named = kernels_of(found, rules_of(found))
    return {frozenset(n for n, k in named.items() if k == kernel) for kernel in named.values()}


def test_a_chain_is_read_once_and_written_once() -> None:
    found = block(
        ("a", "aten.mul.Tensor", ("x", "y")),
        ("b", "aten.silu.default", ("a",)),
        ("c", "aten.add.Tensor", ("b", "x")),
        outputs=("c",),
    )
    traffic = fused(found, rules_of(found))
    assert traffic.inside == {"a", "b"}
    assert traffic.reads == {"a": (True, True), "b": (False,), "c": (False, False)}  # x has been read for a
    alone = apart(found)
    assert not alone.inside and all(all(reads) for reads in alone.reads.values())


def test_a_reduction_and_its_users_are_one_kernel_over_the_same_elements() -> None:
    found = block(
        ("squares", "aten.mul.Tensor", ("x", "x")),
        ("narrow", MEAN, ("squares",)),
        ("centred", "aten.mul.Tensor", ("x", "y")),
        ("sum", "aten.add.Tensor", ("centred", "squares")),
        outputs=("sum", "narrow"),
    )
    assert kernels(found) == {frozenset({"squares", "narrow", "centred", "sum"})}
    assert fused(found, rules_of(found)).inside == {"squares", "centred"}


def test_operators_over_other_elements_are_kernels_of_their_own() -> None:
    """What follows a reduction on its small result goes over that, not over what was reduced."""
    found = block(
        ("a", "aten.silu.default", ("x",)),
        ("narrow", MEAN, ("a",)),
        ("narrow_root", "aten.rsqrt.default", ("narrow",)),
        outputs=("narrow_root",),
    )
    assert kernels(found) == {frozenset({"a", "narrow"}), frozenset({"narrow_root"})}
    traffic = fused(found, rules_of(found))
    assert traffic.inside == {"a"} and traffic.reads["narrow_root"] == (True,)


def test_a_kernel_does_not_wait_for_a_matmul_in_its_middle() -> None:
    found = block(
        ("a", "aten.silu.default", ("x",)),
        ("product", LINEAR, ("a",)),
        ("sum", "aten.add.Tensor", ("a", "product")),
        outputs=("sum",),
    )
    assert kernels(found) == {frozenset({"a"}), frozenset({"sum"})}
    traffic = fused(found, rules_of(found))
    assert not traffic.inside and traffic.reads["sum"] == (True, True)


def test_what_is_used_beyond_is_written_but_not_read_back() -> None:
    found = block(
        ("a", "aten.add.Tensor", ("x", "y")),
        ("b", "aten.silu.default", ("a",)),
        ("product", LINEAR, ("b",)),
        ("sum", "aten.add.Tensor", ("a", "product")),
        outputs=("sum",),
    )
    traffic = fused(found, rules_of(found))
    assert not traffic.inside
    assert traffic.reads["b"] == (False,) and traffic.reads["sum"] == (True, True)


def test_what_a_backward_computes_again_is_kept_and_read() -> None:
    """AOTAutograd's partitioner keeps a product's result, and computes the bias and the activation again."""
    found = block(
        ("product", LINEAR, ("x",)),
        ("biased", "aten.add.Tensor", ("product", "y")),
        ("activated", "aten.gelu.default", ("biased",)),
        ("last", LINEAR, ("activated",)),
        outputs=("last",),
    )
    operators, alone = (operators_of(found, fuses=fuses) for fuses in (True, False))
    assert operators["biased"].keeps == (0, 1) and operators["biased"].rereads == (True, True)
    assert operators["activated"].keeps == () and alone["activated"].keeps == (0,) and alone["biased"].keeps == ()
    assert operators["last"].keeps == (0,)


def test_what_one_kernel_keeps_another_does_not_read_again() -> None:
    found = block(
        ("activated", "aten.gelu.default", ("x",)),
        ("product", LINEAR, ("activated",)),
        ("sum", "aten.add.Tensor", ("product", "x")),
        outputs=("sum",),
    )
    operators = operators_of(found, fuses=True)
    assert operators["activated"].rereads == (True,) and operators["sum"].rereads == (False, False)


@pytest.mark.slow
def test_torch_keeps_as_much_of_a_compiled_chain() -> None:
    """Elements that torch's partitioner saves of x@w + b -> gelu -> @v: x, the product, the activation, weights."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    def chain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w + b) @ v

    operands = [torch.randn(*shape, requires_grad=True) for shape in ((64, 8), (8, 32), (32,), (32, 8))]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.compile(chain, backend="aot_eager_decomp_partition", fullgraph=True)(*operands)
    assert sorted(sizes) == sorted([64 * 8, 64 * 32, 64 * 32, 8 * 32, 32, 32 * 8])
