"""A rescaled graph is the graph that is traced at that size, node by node; what can't follow is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from autoplan.errors import RescaleError
from autoplan.ir.graph import Model, Ref
from autoplan.models.inputs import hf_inputs
from autoplan.trace.pipeline import trace
from autoplan.trace.rescale import rescale
from tests.support import zoo
from tests.support.sampling import sampled


@cache
def sized(name: str, batch: int, seq: int | None = None) -> Model:
    """A model of the zoo, traced at a size."""
    model, given, loss_fn = zoo.small(name, "meta")
    items = given.items() if isinstance(given, dict) else enumerate(given)
    inputs = {
        key: torch.empty(
            (batch, *((seq,) if seq and value.ndim == 2 else value.shape[1:])), dtype=value.dtype, device="meta"
        )
        for key, value in items
    }
    return trace(model, inputs if isinstance(given, dict) else tuple(inputs.values()), loss_fn=loss_fn, training=True)


@pytest.mark.parametrize("name", sampled(zoo.NAMES, ["llama", "bert", "convnet"]))
def test_another_batch_is_the_graph_traced_at_that_batch(name: str) -> None:
    assert rescale(sized(name, 8), batch=24) == sized(name, 24)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_another_sequence_is_the_graph_traced_at_that_sequence(name: str) -> None:
    traced = sized(name, 4, 48)
    assert rescale(sized(name, 8), batch=4, seq=48) == traced
    assert rescale(traced, batch=8, seq=16) == sized(name, 8)


def test_a_size_that_stays_is_the_same_model() -> None:
    model = sized("llama", 8)
    assert rescale(model) is model and rescale(model, batch=8, seq=16) is model


class Written(nn.Module):
    """A forward given as a function, over an embedding of 12 tokens as 8 features."""

    def __init__(self, work: Callable[..., torch.Tensor], table: int = 0) -> None:
        super().__init__()
        self.embedding, self.last, self.work = nn.Embedding(12, 8), nn.Linear(8, 8), work
        if table:
            self.register_buffer("table", torch.zeros(table, 8))
            self.positions = nn.Embedding(table, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.work(self, self.last(self.embedding(ids)))


def written(work: Callable[..., torch.Tensor], batch: int, seq: int, table: int = 0) -> Model:
    with torch.device("meta"):
        model, ids = Written(work, table), torch.empty(batch, seq, dtype=torch.int64)
    return trace(model, (ids,), loss_fn=lambda out: out.mean(), training=True)


def flattened(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    b, s, h = x.shape
    return F.relu(x.reshape(b * s, h)).reshape(b, s, h)


def shifted(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x[:, 1:] * x[:, :-1]


def last_token(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x[:, -1] + x[:, 0]


def masked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.shape[1], device=x.device)
    seen = at[:, None] >= at[None, :]
    return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=seen)


def class_token(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    first = model.last.bias[None, None].expand(x.shape[0], 1, 8)
    return torch.cat([first, x], 1)


def looked_up(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + model.positions(torch.arange(2, x.shape[1] + 2, device=x.device)) + model.table[: x.shape[1]]


def strided(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, ::2] + x[:, 1::2], x[:, 2::3]], 1)[..., ::3]


def every_other_position(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x[:, ::2] + model.table[: x.shape[1] : 2]


def strongest(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.topk(3, 1).values + x.max(1, keepdim=True).values


@pytest.mark.parametrize("work", [flattened, shifted, last_token, masked, class_token, strided, strongest])
def test_sizes_of_every_kind_follow(work: Callable[..., torch.Tensor]) -> None:
    assert rescale(written(work, 6, 20), batch=10, seq=28) == written(work, 10, 28)


def test_tables_are_read_as_far_as_they_reach() -> None:
    model = written(looked_up, 6, 20, table=40)
    assert rescale(model, seq=38) == written(looked_up, 6, 38, table=40)
    with pytest.raises(RescaleError, match=r"seq=39: positions.weight has 40 positions, and .* reads 41"):
        rescale(model, seq=39)
    with pytest.raises(RescaleError, match=r"seq=50: dim 0 of table, 40 as traced, .* reads elements 0 to 50"):
        rescale(model, seq=50)


def test_a_strided_table_is_read_as_far_as_the_sequence_reaches() -> None:
    model = written(every_other_position, 6, 20, table=40)
    assert rescale(model, seq=28) == written(every_other_position, 6, 28, table=40)
    with pytest.raises(RescaleError, match=r"seq=42: dim 0 of table, 40 as traced, .* steps of 2, and 21 are read"):
        rescale(model, seq=42)


MIXTURES = {
    "gpt_oss": {"intermediate_size": 64, "num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": 16},
    "deepseek_v3": {
        "first_k_dense_replace": 1, "intermediate_size": 64, "moe_intermediate_size": 32, "q_lora_rank": 24,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_local_experts": 8,
        "n_group": 4, "topk_group": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", sampled(MIXTURES, ["deepseek_v3"]))
def test_mixtures_with_strided_rotations_and_routers_follow(kind: str) -> None:
    common = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 128}
    settings = {**common, "num_experts_per_tok": 2, "head_dim": 8 if kind == "deepseek_v3" else 16, **MIXTURES[kind]}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **settings))
    small = trace(model, hf_inputs(model, 6, 60), training=True)
    assert rescale(small, batch=10, seq=96) == trace(model, hf_inputs(model, 10, 96), training=True)


@pytest.mark.parametrize(
    ("work", "asked", "said"),
    [
        (lambda m, x: x / x.shape[1], {"seq": 40}, "seq=40: .* computes with the number 20, which may be the size"),
        (lambda m, x: x.sum() + torch.arange(x.shape[1]).sum(), {"seq": 40}, "arange.*nothing says whether"),
        (lambda m, x: x[:, :10], {"seq": 40}, "cuts it at 10, and nothing says from which end"),
        (lambda m, x: F.max_pool2d(x, 2), {"seq": 40}, "max_pool2d.* would have 40 elements for 20"),
        (lambda m, x: x.reshape(6, 4, 5, 8).sum(2), {"seq": 40}, "would have 40 elements for 20"),
        (lambda m, x: x + m.table[None], {"seq": 40}, "it would be 20 by table itself.* and 40 by"),
        (lambda m, x: x, {"seq": 0}, "seq=0: a size is a whole number of at least 1"),
        (lambda m, x: x, {"batch": 2.0}, "batch=2.0: a size is a whole number"),
    ],
)
def test_what_cannot_follow_is_refused(work: Callable[..., torch.Tensor], asked: dict, said: str) -> None:
    with pytest.raises(RescaleError, match=said):
        rescale(written(work, 6, 20, table=20), **asked)


def test_a_batch_of_one_row_can_not_be_told_from_ones() -> None:
    with pytest.raises(RescaleError, match="batch=4: the model was traced with batch=1"):
        rescale(written(flattened, 1, 20), batch=4)


def test_pictures_have_no_sequence() -> None:
    with pytest.raises(RescaleError, match=r"pixel_values of shape \[8, 3, 32, 32\] has no sequence of tokens"):
        rescale(sized("vit", 8), seq=64)


def test_types_of_the_blocks_follow_and_parameters_stay() -> None:
    model, other = sized("llama", 8), rescale(sized("llama", 8), batch=16, seq=64)
    assert other.parameters == model.parameters and other.segments == model.segments
    assert other.batch[0].type.shape == (16, 64)
    assert any(node.args == (64,) for node in other.constants if node.op == "aten.arange.default")
    assert all(isinstance(node.args[0], Ref) for node in other.blocks[0].nodes)
