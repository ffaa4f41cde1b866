"""Experts one by one are read as the stacks that a model has: boxes across experts and across the two halves."""

from __future__ import annotations

import pytest
import torch

from autoplan.runtime.parallel.own_box import Part
from autoplan.runtime.weights.experts import StackedExperts
from autoplan.runtime.weights.loading import StateDict

EXPERTS, INNER, WIDTH = 3, 4, 5


def one_by_one(mixture: str, names: tuple[str, str, str]) -> dict[str, torch.Tensor]:
    gate, up, down = names
    shapes = {gate: (INNER, WIDTH), up: (INNER, WIDTH), down: (WIDTH, INNER)}
    return {f"{mixture}.experts.{e}.{n}.weight": torch.randn(s) for e in range(EXPERTS) for n, s in shapes.items()}


@pytest.mark.parametrize("mixture", ["layers.0.mlp", "layers.0.block_sparse_moe"])
@pytest.mark.parametrize("names", [("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")])
def test_a_box_of_a_stack_is_put_together(mixture: str, names: tuple[str, str, str]) -> None:
    tensors = one_by_one(mixture, names) | {f"{mixture}.gate.weight": torch.randn(EXPERTS, WIDTH)}
    weights = StackedExperts(StateDict(tensors))
    each = [[tensors[f"{mixture}.experts.{e}.{n}.weight"] for n in names] for e in range(EXPERTS)]
    whole = {
        "layers.0.mlp.experts.gate_up_proj": torch.stack([torch.cat([gate, up]) for gate, up, _ in each]),
        "layers.0.mlp.experts.down_proj": torch.stack([down for _, _, down in each]),
        "layers.0.mlp.gate.weight": tensors[f"{mixture}.gate.weight"],
    }
    boxes = [Part((1, 2, 1), (2, 5, 3)), Part((0, 0, 0), (3, 3, 4))]
    boxes += [Part((2, 5, 0), (1, 2, 2)), Part((0, 1, 1), (3, 2, 1))]
    for name, value in whole.items():
        assert name in set(weights.names()) and weights.shape(name) == tuple(value.shape)
        for box in boxes if value.ndim == 3 else [Part((1, 1), (2, 3))]:
            if any(a + n > size for a, n, size in zip(box.start, box.shape, value.shape, strict=True)):
                continue
            out = torch.empty(box.shape)
            weights.read(name, box, out)
            assert torch.equal(out, value[box.slices])


def test_half_a_mixture_makes_no_stack() -> None:
    tensors = one_by_one("m", ("w1", "w3", "w2"))
    del tensors["m.experts.1.w3.weight"]
    assert set(StackedExperts(StateDict(tensors)).names()) == tensors.keys() | {"m.experts.down_proj"}
    del tensors["m.experts.0.w2.weight"]
    assert set(StackedExperts(StateDict(tensors)).names()) == tensors.keys()
