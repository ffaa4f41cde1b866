"""Operations of the rehearsed operators: keys and values may have fewer heads than queries, under any torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from autoplan.rehearsal.device.flops import flops_of

aten = torch.ops.aten
FLASH, BACKWARD = aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward


def heads(count: int, length: int = 16) -> Tensor:
    return torch.empty(2, count, length, 8, device="meta")


def test_grouped_heads_are_multiplied_for_each_query() -> None:
    q, k = heads(4), heads(2, 12)
    products = 2 * 2 * 4 * 16 * 12 * 8  # 2 · batch · heads · queries · keys · head dim, of the scores
    assert flops_of(FLASH.default, (q, k, k), {}, (q,)) == 2 * products
    every = flops_of(FLASH.default, (q, heads(4, 12), heads(4, 12)), {}, (q,))
    assert every == 2 * products == flop_registry[FLASH](q, heads(4, 12), heads(4, 12), out_val=(q,))


def test_so_are_they_in_the_backward() -> None:
    q, k = heads(4), heads(2)
    rest = (q, None, None, None, 16, 16, 0.0, True, None, None)
    grouped = flops_of(BACKWARD.default, (q, q, k, k, *rest), {}, (q, k, k))
    assert grouped == flops_of(BACKWARD.default, (q, q, heads(4), heads(4), *rest), {}, (q, q, q)) > 0


def test_a_kernel_called_by_its_own_name_has_those_of_its_formula() -> None:
    kernel, q = aten._flash_attention_forward, heads(4)
    given = (q, q, q, None, None, 16, 16, 0.0, False, False)
    assert flops_of(kernel.default, given, {}, (q,)) == flop_registry[kernel](*given, out_val=(q,)) > 0


def test_an_operator_without_products_has_none() -> None:
    x = torch.ones(3)
    assert flops_of(aten.add.Tensor, (x, x), {}, x) == 0
    assert flops_of(aten.mm.default, (torch.ones(2, 3), torch.ones(3, 5)), {}, torch.ones(2, 5)) == 2 * 2 * 3 * 5
