"""The models and clusters on which laws are tried: dense ones, mixtures and long sequences, of few layers each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoplan.cluster import ClusterSpec
from autoplan.compile import traced_model
from autoplan.errors import AutoplanError
from autoplan.ir.choice import Chosen
from autoplan.ir.graph import Model
from autoplan.models.inputs import resolve_inputs
from autoplan.models.named import resolve_model
from autoplan.options import Parallelism, Training
from autoplan.search.entry import search
from autoplan.search.space.batch_moves import with_batch_moves
from autoplan.search.space.systems import resolve
from autoplan.trace.initialise import given
from tests.support.planning import alone

MIXED = Training(precision="bf16-mixed")
CLUSTERS = ("1x8 h100-sxm", "4x8 a100-sxm-40gb", "8x8 h200", "2x8 b200")
MIXTURE = "num_attention_heads=16 num_key_value_heads=8 max_position_embeddings=8192"


@dataclass(frozen=True)
class Subject:
    """A model as ``--model`` names it, with its settings, the rows of a step and the tokens of a row."""

    model: str
    settings: str
    batch: int
    seq: int

    def traced(self, times: int = 1) -> Model:
        """The graph that a search takes, of so many times the batch."""
        request = resolve_model(self.model, self.settings.split(), batch=times * self.batch, seq=self.seq)
        module = given(request.model).module
        inputs = resolve_inputs(module, request.example_inputs, 8)
        return with_batch_moves(traced_model(module, inputs, request.loss_fn, MIXED))


SUBJECTS = {
    "llama 8B's layers": Subject("hf:llama-3-8b", "num_hidden_layers=8", 128, 4096),
    "llama 70B's layers": Subject("hf:llama-3-70b", "num_hidden_layers=12", 128, 4096),
    "gpt": Subject("hf:gpt2", "n_embd=2560 n_layer=10 n_head=32 n_positions=2048 vocab_size=50304", 256, 2048),
    "mixtral": Subject(
        "hf:mixtral", f"hidden_size=2048 intermediate_size=7168 num_hidden_layers=6 {MIXTURE}", 128, 4096
    ),
    "qwen3 moe": Subject(
        "hf:qwen3_moe", f"hidden_size=2048 intermediate_size=6144 num_hidden_layers=4 num_experts=32 "
        f"num_experts_per_tok=2 moe_intermediate_size=1536 {MIXTURE}", 128, 4096,
    ),
    "long rows": Subject("hf:llama-3-8b", "num_hidden_layers=6 max_position_embeddings=131072", 8, 131072),
}  # fmt: skip
MIXTURES, LONG = ("mixtral", "qwen3 moe"), ("long rows",)


def planned(model: Model, cluster: ClusterSpec, pinned: Parallelism | str = "auto") -> Chosen | None:
    """What a full search chooses; None where nothing fits, or what is pinned can't be."""
    try:
        with alone():
            return search(model, cluster, MIXED, resolve(pinned, cluster), (), "full")[0]
    except AutoplanError:
        return None


def seconds(model: Model, cluster: ClusterSpec, pinned: Parallelism | str = "auto") -> float:
    """Of a step; infinite where there is no plan."""
    chosen = planned(model, cluster, pinned)
    return math.inf if chosen is None else chosen.predicted.step_time_s


def tried(names: Sequence[str], clusters: Sequence[str]) -> list[tuple[str, str]]:
    """Cells in an order in which those that come first differ in both."""
    return sorted(
        ((name, cluster) for name in names for cluster in clusters),
        key=lambda cell: ((names.index(cell[0]) + clusters.index(cell[1])) % len(clusters), names.index(cell[0])),
    )


def more_memory(cluster: ClusterSpec, times: float) -> ClusterSpec:
    return replace(cluster, memory_bytes=round(times * cluster.usable_bytes))
