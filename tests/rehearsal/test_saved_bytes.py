"""What a layer keeps for its backward, rank 0 of four: the papers' formulas, and what the search predicts.

Korthikanti et al. 2022 (arXiv:2205.05198), table 2, count bytes of s·b·h elements, n, in 16 bit: 10n + 24n/t + 5as²b/t
under tensor parallelism, 34n/t + 5as²b/t with sequence parallelism, without the last term under selective
recomputation, 2n in full. Attention is fused here: in place of 5as²b/t stands the log-sum-exp of each query, which is
under 1%. The masks of 2n are there where something is dropped, by rank. Term by term, of GPT-2:

    term                               paper      none                    selective
    norms' inputs                      4n         4n                      4n
    norms' outputs, products' inputs   4n         4n, gathered 4n         computed again
    dropout's masks                    2n         2n, if dropping         2n, if dropping
    q, k, v, attention's result        8n/t       8n/t                    8n/t
    GELU's input                       8n/t       8n/t                    8n/t
    GELU's output                      8n/t       8n/t                    computed again

Under sequence parallelism norms' inputs are 4n/t. The paper keeps their outputs split and gathers them again; here that
is a part of selective recomputation, and without it they stay gathered, for a collective's time. In full 2n, or 2n/t.

A Llama's norms are written in pieces: each keeps its input in float32, the normalised rows, and its output (8n); and a
gate of f features keeps gate, up, the activated gate and their product (8nf/ht), selectively gate and up.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from autoplan.export.folder import write_folder
from autoplan.ir.choice import StageChoice
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism, Training
from autoplan.search.repriced import repriced
from tests.support.planning import parallelize_alone, with_stage
from tests.support.rehearsing import Forks
from tests.support.sampling import sampled
from tests.support.saved_bytes import Kept, saved_bytes

ROWS, LENGTH, HIDDEN, HEADS, INNER, TENSOR, LAYERS = 4, 128, 256, 8, 640, 4, 3
N = ROWS * LENGTH * HIDDEN
NEAR = 0.02


def gpt2(p: float = 0.0) -> nn.Module:
    dropped = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), p)
    sizes = dict(vocab_size=512, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH, bos_token_id=1)
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropped, eos_token_id=1))


def dropping() -> nn.Module:
    """Its ranks draw for themselves: attention drops within its kernel, each branch keeps a mask of bytes."""
    return gpt2(0.1)


def llama() -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=LENGTH,
        )
    )  # fmt: skip


def gpt2_bytes(recompute: str, sequence: bool) -> float:
    stream, products = (N / TENSOR if sequence else N), N / TENSOR
    return {
        "none": 4 * stream + 4 * N + 24 * products,
        "selective": 4 * stream + 16 * products,
        "full": 2 * stream,
    }[recompute]


def dropping_bytes(recompute: str, sequence: bool) -> float:
    masks = 2 * N / TENSOR if sequence else 2 * N
    return gpt2_bytes(recompute, sequence) + (0 if recompute == "full" else masks)


def llama_bytes(recompute: str, sequence: bool) -> float:
    stream, products, inner = (N / TENSOR if sequence else N), N / TENSOR, N * INNER / HIDDEN / TENSOR
    return {
        "none": 12 * stream + 4 * N + 8 * products + 8 * inner,
        "selective": 4 * stream + 8 * products + 4 * inner,
        "full": 2 * stream,
    }[recompute]


MODELS = {"gpt2": (gpt2, gpt2_bytes), "llama": (llama, llama_bytes), "dropping": (dropping, dropping_bytes)}
CASES = [(model, sequence) for model in MODELS for sequence in (False, True)]
COUNTS = {"none": (0, 0), "selective": (0, LAYERS), "full": (LAYERS, 0)}
QUICK = [("dropping", True), ("llama", False)]  # what drops keeps what GPT-2 keeps, and its masks


def planned(model: str, sequence: bool) -> PlanRecord:
    with torch.device("meta"):
        module = MODELS[model][0]()
    batch = dict.fromkeys(("input_ids", "labels"), torch.zeros(ROWS, LENGTH, dtype=torch.int64))
    pinned = Parallelism(dp=1, tp=TENSOR, pp=1, micro_batch=ROWS, sequence_parallel=sequence, recompute="selective")
    training = Training(precision="bf16", compile=False, randomness="per-rank")
    return parallelize_alone(module, "1x4 h100-sxm", batch, training=training, parallelism=pinned).record


def measured(record: PlanRecord, place: Path, forks: Forks) -> dict[str, Kept]:
    """What a layer keeps by how it is recomputed."""
    assert record.chosen.stages == (StageChoice(0, len(record.model.segments), *COUNTS["selective"]),)
    folders = [place / name for name in COUNTS]
    for folder, (full, selective) in zip(folders, COUNTS.values(), strict=True):
        write_folder(with_stage(record, full, selective), folder, folder.name, {})
    return dict(zip(COUNTS, forks(saved_bytes, [folders])[0], strict=True))


@pytest.mark.parametrize(("model", "sequence"), sampled(CASES, QUICK))
def test_a_layer_keeps_what_the_formula_says(tmp_path: Path, forks: Forks, model: str, sequence: bool) -> None:
    record = planned(model, sequence)
    found = measured(record, tmp_path, forks)
    price = repriced(record)[1].point.prices[1]
    predicted = {"none": price.kept_bytes, "selective": price.selective.kept_bytes, "full": price.input_bytes}
    for name, kept in found.items():
        total = sum(size for size, _, _ in kept)
        assert total == pytest.approx(MODELS[model][1](name, sequence), rel=NEAR), (name, kept)
        assert predicted[name] == pytest.approx(total, rel=NEAR), name
    assert price.selective.kept_bytes < price.kept_bytes and price.selective.again_s < price.forward_s
