"""Selective recomputation, run: equal to one device, no reduction twice, and it keeps the bytes that are priced."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

import autoplan
from autoplan.cluster import ClusterSpec
from autoplan.cost import Prices
from autoplan.cost.operators.operator_seconds import operators_of
from autoplan.export.folder import write_folder
from autoplan.ir.choice import tensor_mesh
from autoplan.ir.record import PlanRecord
from autoplan.options import Parallelism
from autoplan.runtime.parallel.compiled import compile_segments
from autoplan.runtime.parallel.zero import segments_of
from autoplan.search.block_cost.account import price_block
from autoplan.verify import verify
from autoplan.verify.local_ranks import RankPool
from tests.support import zoo
from tests.support.planning import parallelize_alone, with_stage
from tests.support.sampling import slow

pytestmark = pytest.mark.usefixtures("verified_in_pool")

Stepped = tuple[float, dict[str, Tensor], tuple[int, int]]


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=96, attn_pdrop=0.0, bos_token_id=1)
    )


def planned(model: str, cluster: str = "1x2 cpu", **pinned: object) -> tuple[nn.Module, PlanRecord]:
    module, batch, loss_fn = zoo.small(model) if model != "dropout" else (dropping(), zoo.batch_of("gpt2"), None)
    parallelism = Parallelism(**pinned)  # type: ignore[arg-type]
    return module, parallelize_alone(module, cluster, batch, loss_fn=loss_fn, parallelism=parallelism).record


@pytest.mark.parametrize(
    ("model", "pinned"),
    [slow(("llama", dict(dp=2, tp=1, pp=1, zero=3, micro_batch=2))), ("gpt2", dict(dp=1, tp=1, pp=2, micro_batch=2))],
    ids=["llama, zero3", "gpt2, pp=2"],
)
def test_it_equals_one_device(model: str, pinned: dict[str, int]) -> None:
    module, record = planned(model, **pinned, recompute="selective")
    assert sum(stage.selective for stage in record.chosen.stages) == zoo.LAYERS
    assert verify(record, module, None, seed=0, raises=True).passed


def test_a_mix_in_one_stage_equals_one_device() -> None:
    module, record = planned("llama", dp=1, tp=2, pp=1, micro_batch=4, recompute="selective")
    assert verify(with_stage(record, 1, 2), module, None, seed=0, raises=True).passed


class Counted(TorchDispatchMode):
    """Counts collectives that add up and products; what was gathered may be gathered again."""

    def __init__(self) -> None:
        super().__init__()
        self.collectives, self.products = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.collectives += func.namespace in ("_c10d_functional", "c10d") and "reduce" in func.__name__
        self.products += func.__name__ in ("mm.default", "addmm.default")
        return func(*args, **(kwargs or {}))


def step(rank: int, world: int, folder: str, weights: str, compiled: bool) -> Stepped:
    """The loss, the gradients, and how many collectives and products ran (none are counted in a compiled step)."""
    program = autoplan.load(folder).program()
    program.load_weights(weights)
    if compiled:
        compile_segments(program.stages.modules, backend="aot_eager")
    counted = Counted()
    with nullcontext() if compiled else counted:  # which a compiler can't take
        loss = program.step(zoo.batch_of("gpt2"))
    return float(loss), program.full_grads(), (counted.collectives, counted.products)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_no_reduction_is_repeated_and_a_compiled_step_is_the_eager_one(tmp_path: Path) -> None:
    """With dropout on: what runs again drops what it dropped before."""
    module, record = planned("dropout", dp=1, tp=2, pp=1, recompute="selective")
    assert record.chosen.blocks[1].again
    weights = tmp_path / "weights.safetensors"
    save_file({name: value.clone().contiguous() for name, value in module.state_dict().items()}, weights)
    with RankPool(2, timeout_s=240) as pool:
        found = {}
        for name, full, selective in (("none", 0, 0), ("full", 2, 0), ("selective", 0, 2)):
            write_folder(with_stage(record, full, selective), tmp_path / name, name, {})
            found[name] = pool.run(step, str(tmp_path / name), str(weights), False)[0]
        found["compiled"] = pool.run(step, str(tmp_path / "selective"), str(weights), True)[0]
    loss, gradients, counts = found["none"]
    assert found["selective"][2] == counts, "neither a reduction nor a product runs twice"
    assert found["full"][2][0] > counts[0] and found["full"][2][1] > counts[1]
    for name in ("full", "selective", "compiled"):
        assert found[name][0] == pytest.approx(loss, rel=1e-6)
        for key, wanted in gradients.items():
            torch.testing.assert_close(found[name][1][key], wanted, rtol=1e-4, atol=1e-6)


def storages(tensors: list[Tensor]) -> dict[int, int]:
    """Bytes of each storage."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def alive() -> dict[int, int]:
    gc.collect()
    return storages([t for t in gc.get_objects() if type(t) is Tensor])


def kept_bytes(rank: int, world: int, folder: str) -> tuple[int, int, int]:
    """What one layer keeps beside its parameters: as it is, selectively, and of that its input."""
    program = autoplan.load(folder).program()
    program.init_weights(0)
    layer = list(segments_of(next(program.stages.modules[0].children())))[1]
    x = torch.randn(4, zoo.SEQUENCE, zoo.HIDDEN, requires_grad=True)
    tables = [torch.randn(1, zoo.SEQUENCE, zoo.HIDDEN // zoo.HEADS) for _ in range(2)]
    saved: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        type(layer).forward(layer, x, *tables)
    whole = storages(saved)
    for t in (*layer.parameters(), *tables):
        whole.pop(t.untyped_storage().data_ptr(), None)
    saved.clear()
    before = alive()
    y = layer(x, *tables)
    after = alive()
    own = {p.untyped_storage().data_ptr() for p in layer.parameters()}  # views of which are kept for the backward
    left = {at: size for at, size in after.items() if at not in before and at not in own}
    left.pop(y.untyped_storage().data_ptr())
    entered = x.untyped_storage().nbytes()
    return sum(whole.values()), sum(left.values()) + entered, entered


def test_it_keeps_what_is_priced_between_nothing_and_everything(tmp_path: Path) -> None:
    _, record = planned("llama", "1x1 cpu", dp=1, tp=1, pp=1, micro_batch=4, recompute="selective")
    write_folder(record, tmp_path / "out", "bytes", {})
    with RankPool(1, timeout_s=240) as pool:
        whole, selective, entered = pool.run(kept_bytes, str(tmp_path / "out"))[0]
    assert entered < selective < whole
    mesh, block = tensor_mesh(record.chosen.mesh), record.model.blocks[1]
    prices = Prices(mesh, ClusterSpec.parse("1x1 cpu").topology(), False, True, 2)
    price = price_block(block, record.chosen.blocks[1], operators_of(block, fuses=False), prices)
    assert price.selective.kept_bytes == pytest.approx(selective, rel=0.1)
    assert 0 < price.selective.again_s < price.forward_s
