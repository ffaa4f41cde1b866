"""int8, fp8, top-k and 1-bit Adam of a hand-written program on four ranks: equal to their rules, resharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoplan.ir.buckets import Compression
from autoplan.options import Training
from autoplan.runtime.parallel.compression.block_codes import FP8, INT8, SIGNS
from autoplan.runtime.parallel.compression.kinds import compressor
from autoplan.runtime.parallel.compression.onebit import FrozenVarianceAdam, OneBitSums
from autoplan.runtime.parallel.compression.two_levels import TwoLevelSums
from autoplan.runtime.parallel.own_box import whole
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.asynchronous import RATE, How, Simulated
from tests.support.compressed import Box, FrozenAdam, FrozenLamb, Replicas, Run, compressed, rule_of
from tests.support.sampling import sampled, slow
from tests.support.taken_up import Trained, assert_same, trained

STEPS, SEED = 6, 3
TRAINING = Training(precision="fp64", learning_rate=RATE, compile=False, seed=SEED)
KINDS: Mapping[str, Compression] = {
    "int8": Compression("int8"),
    "fp8": Compression("fp8"),
    "topk": Compression("topk", rate=0.2),
    "powersgd": Compression("powersgd", rank=1),
    "1bit": Compression("1bit"),
    "1bit-lamb": Compression("1bit-lamb"),
}
KINDS = KINDS | {f"{kind} between pairs": replace(how, within=2) for kind, how in KINDS.items()}
START = 2  # of 1-bit Adam, whose variance is frozen then

MESHES = {
    "dp4": dict(dp=4),
    "dp2 tp2": dict(dp=2, tp=2, microbatches=2),
    "dp2 pp2": dict(dp=2, pp=2, microbatches=2),
    "dp2 pp2 zero bubble": dict(dp=2, pp=2, microbatches=4, virtual_stages=2, pipeline_schedule="zero-bubble"),
}
HIDDEN, WIDTH, VOCAB = tiny.HIDDEN, tiny.WIDTH, tiny.VOCAB


def boxes(mesh: Mapping, how: Compression, whole_from: Mapping[str, int]) -> list[Box]:
    """What of the program goes compressed: of a layer each piece, a half of it under tp, unless factors have no gain by
    that; the tied weight, unless two stages sum it."""
    found, ways = [], mesh.get("tp", 1)
    places = [("embed.weight", "embed.weight", (VOCAB, WIDTH), (slice(None),))] if mesh.get("pp", 1) == 1 else []
    for layer in range(tiny.LAYERS):
        fused, down = f"layers.{layer}.gate_up.weight", f"layers.{layer}.down.weight"
        part = HIDDEN // ways
        for first in (0, HIDDEN):
            piece = f"{fused}[{first}:{first + HIDDEN}]"
            for start in range(first, first + HIDDEN, part):
                places.append((fused, piece, (part, WIDTH), (slice(start, start + part),)))
        for start in range(0, HIDDEN, part):
            places.append((down, down, (WIDTH, part), (slice(None), slice(start, start + part))))
    for source, stored, shape, slices in places:
        if how.takes(shape):
            rule = rule_of(how, stored, whole(shape), SEED)
            found.append(Box(source, slices, rule, whole_from.get(source, STEPS)))
    return found


def made(mesh: Mapping, training: Training, kind: str) -> Program:
    how = KINDS[kind]
    training = replace(training, compression_start=START) if how.one_bit else training
    training = replace(training, optimizer="lamb") if how.kind == "1bit-lamb" else training
    spec, fields = tiny.spec(**mesh, training=training), {"compression": how.kind, "compression_within": how.within}
    fields |= {"compression_rank": how.rank or None, "compression_rate": how.rate or None}
    stages = mesh.get("pp", 1) * mesh.get("virtual_stages", 1)
    return Program(replace(spec, parallelism=replace(spec.parallelism, **fields)), tiny.program(stages))


def train(
    rank: int, world: int, mesh: dict, training: Training, kind: str, folder: str = "", at: int = 0,
    then: dict | None = None, other: str = "",
) -> Trained:  # fmt: skip
    return trained(
        lambda: made(mesh, training, kind), STEPS, folder, at, lambda: made(then or mesh, training, other or kind)
    )


def counted(batch: Mapping[str, Tensor]) -> int:
    return int((batch["labels"] != -100).sum())


def simulated(
    mesh: Mapping, kind: str, run: Run, training: Training = TRAINING, whole_from: Mapping[str, int] = {},
) -> Simulated:  # fmt: skip
    parts = boxes(mesh, KINDS[kind], whole_from)
    ways = mesh["dp"] // KINDS[kind].within
    replicas = None if KINDS[kind].linear else Replicas(ways, mesh.get("microbatches", 1), counted)
    how = How(lambda module, batch: module(**batch), lambda module: optimizer_of(module, training, kind))
    run = replace(run, start=START) if KINDS[kind].one_bit else run
    return compressed(tiny.reference(), list(tiny.batches(STEPS)), parts, how, replicas, run)


def optimizer_of(module: nn.Module, training: Training, kind: str) -> torch.optim.Optimizer:
    """AdamW, with the groups that a training has."""
    if KINDS[kind].one_bit:
        return (FrozenLamb if KINDS[kind].kind == "1bit-lamb" else FrozenAdam)(module, START, RATE)
    named, groups = dict(module.named_parameters()), []
    for group in training.groups:
        mine = [named.pop(name) for name in list(named) if name.endswith("bias")]
        groups.append({"params": mine, **dict(group.options)})
    return torch.optim.AdamW([{"params": list(named.values())}, *groups], lr=RATE)


CASES = [(kind, mesh) for kind in ("int8", "fp8", "topk", "1bit", "1bit-lamb") for mesh in MESHES]
CASES += [(f"{kind} between pairs", "dp4") for kind in ("int8", "fp8", "topk", "powersgd", "1bit", "1bit-lamb")]
QUICK = [("int8", "dp2 tp2"), ("fp8", "dp4"), ("1bit", "dp4"), ("topk", "dp2 pp2 zero bubble")]
QUICK += [("1bit-lamb", "dp2 tp2"), *((f"{kind} between pairs", "dp4") for kind in ("int8", "powersgd", "1bit"))]


@pytest.mark.parametrize(("kind", "mesh"), sampled(CASES, QUICK))
def test_equals_its_rule_in_one_process(pool: RankPool, kind: str, mesh: str) -> None:
    results = pool.run(train, MESHES[mesh], TRAINING, kind)
    assert all(losses == results[0][0] for losses, _ in results)
    assert_same(results[0], simulated(MESHES[mesh], kind, Run()), 1e-10)


def test_rules_differ_from_one_another_and_from_one_devices() -> None:
    exact = simulated(MESHES["dp4"], "topk", Run(start=STEPS)).losses
    losses = [simulated(MESHES["dp4"], kind, Run()).losses for kind in ("int8", "fp8", "topk")]
    assert all(exact[0] == pytest.approx(each[0], rel=1e-12) for each in losses)
    assert len({round(each[-1], 6) for each in (exact, *losses)}) == 4


@pytest.mark.parametrize("kind", sampled(["1bit", "1bit-lamb", "topk", "int8", "fp8"], ["1bit-lamb"]))
def test_goes_on_from_a_checkpoint_on_another_mesh(pool: RankPool, tmp_path: Path, kind: str) -> None:
    """What four ranks left out is added up, and two have a half each. The tied weight, which two stages sum, is whole
    from there."""
    then, at = MESHES["dp2 pp2"], 3
    found = pool.run(train, MESHES["dp4"], TRAINING, kind, str(tmp_path / "saved"), at, then)[0]
    run = Run(saves={at: Replicas(2, then["microbatches"], counted)})
    assert_same(found, simulated(MESHES["dp4"], kind, run, whole_from={"embed.weight": at}), 1e-10)


def kept_on(rank: int, world: int, mesh: dict, folder: str) -> list[Trained]:
    """A run that is saved and goes on, and one that is taken up from what was saved."""
    first = made(mesh, TRAINING, "topk")
    first.load_weights(tiny.reference().state_dict())
    batches, found = list(tiny.batches(4)), []
    for batch in batches[:2]:
        first.step(batch)
        first.optimizer.step()
    first.save_checkpoint(folder)
    second = made(mesh, TRAINING, "topk")
    second.load_checkpoint(folder)
    for program in (first, second):
        losses = []
        for batch in batches[2:]:
            losses.append(program.step(batch).item())
            program.optimizer.step()
        found.append((losses, dict(program.full_state_dict())))
    return found


def test_who_saves_goes_on_as_who_takes_up(pool: RankPool, tmp_path: Path) -> None:
    going, taken = pool.run(kept_on, MESHES["dp4"], str(tmp_path / "saved"))[0]
    assert going[0] == taken[0] and all(torch.equal(value, taken[1][name]) for name, value in going[1].items())


def accumulated(rank: int, world: int, training: Training, kind: str) -> Trained:
    program, losses = made(MESHES["dp4"], training, kind), []
    program.load_weights(tiny.reference().state_dict())
    for number, batch in enumerate(tiny.batches(STEPS)):
        losses.append(program.step(batch, accumulate=number % 2 == 1).item())
        if number % 2:
            program.optimizer.step()
            program.optimizer.zero_grad()
    return losses, dict(program.full_state_dict())


GROUPED = replace(TRAINING, groups=({"match": "*bias", "lr": 0.1, "weight_decay": 0.0},))


LEVELS = [("topk between pairs", "topk", 4), ("1bit", "1bit between pairs", 2), slow(("1bit between pairs", "1bit", 4))]


@pytest.mark.parametrize(("kind", "other", "ways"), LEVELS)
def test_goes_on_from_a_checkpoint_between_other_groups(
    pool: RankPool, tmp_path: Path, kind: str, other: str, ways: int
) -> None:
    """What owners left out between pairs is added up, and all four ranks have a fourth each; and the other way."""
    at = 3
    found = pool.run(train, MESHES["dp4"], TRAINING, kind, str(tmp_path / "saved"), at, None, other)[0]
    run = Run(saves={at: Replicas(ways, 1, counted)})
    assert_same(found, simulated(MESHES["dp4"], kind, run), 1e-10)


PLAIN = [kind for kind, how in KINDS.items() if not how.one_bit]


@pytest.mark.parametrize("kind", sampled(PLAIN, ["powersgd", "int8 between pairs", "topk"]))
def test_batches_that_are_accumulated_and_groups_of_parameters(pool: RankPool, kind: str) -> None:
    """Each batch's gradient is compressed by itself, and its error goes to the next batch's."""
    found = pool.run(accumulated, GROUPED, kind)[0]
    assert_same(found, simulated(MESHES["dp4"], kind, Run(accumulated=2), GROUPED), 1e-10)


def missing(rank: int, world: int, how: Compression) -> tuple[bool, bool, bool]:
    """Of a parameter that no rank has a gradient of, and of one that only one has."""
    parameters = {name: nn.Parameter(torch.zeros((6, 5), dtype=torch.float64)) for name in ("none", "one")}
    held: Any = [
        SimpleNamespace(name=name, part=whole((6, 5)), parameter=p, updated=p, values=p.detach())
        for name, p in parameters.items()
    ]  # fmt: skip
    assert dist.group.WORLD is not None
    sums = compressor(how, held, dist.group.WORLD, SEED)
    sums.optimizer = torch.optim.Adam(parameters.values())
    for p in parameters.values():
        sums.optimizer.state[p] = {"exp_avg": torch.ones_like(p), "exp_avg_sq": torch.ones_like(p)}
    for error in (*sums.errors, *([sums.left] if isinstance(sums, OneBitSums) else ())):
        error.fill_(1.0)
    parameters["one"].grad = torch.ones((6, 5), dtype=torch.float64) if rank == 0 else None
    sums.sum_up()
    kept = all(bool((error == 1).all()) for error in sums.errors[:1])
    if isinstance(sums, OneBitSums) and rank == 0:  # it adds up the first block of two
        kept = kept and bool((sums.left == 1).all())
    given = parameters["one"].grad
    return parameters["none"].grad is None, kept, given is not None and float(given.sum()) > 0


@pytest.mark.parametrize("kind", ["int8", "fp8", "topk", "1bit"])
def test_what_has_no_gradient_keeps_its_error(pool: RankPool, kind: str) -> None:
    assert pool.run(missing, KINDS[kind]) == [(True, True, True)] * 4


def missing_between_pairs(rank: int, world: int, how: Compression) -> tuple[bool, bool]:
    """Of a parameter that no rank has a gradient of, and of one that only the last has."""
    whole_group, (within, _), (across, _) = dist.group.WORLD, *(
        dist.new_subgroups_by_enumeration(members) for members in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    )  # fmt: skip
    assert whole_group is not None and within is not None and across is not None
    parameters = {name: nn.Parameter(torch.zeros((6, 5), dtype=torch.float64)) for name in ("none", "one", "two")}
    held: Any = [
        SimpleNamespace(name=name, part=whole((6, 5)), parameter=p, updated=p, values=p.detach())
        for name, p in parameters.items()
    ]  # fmt: skip
    sums = TwoLevelSums(held, whole_group, within, partial(compressor, how, group=across, seed=SEED))
    for error in sums.left_out.values():
        error.fill_(1.0)
    parameters["one"].grad = torch.ones((6, 5), dtype=torch.float64) if rank == 3 else None
    parameters["two"].grad = torch.ones((6, 5), dtype=torch.float64)
    sums.sum_up()
    kept = all(bool((error == 1).all()) for name, error in sums.left_out.items() if name == "none")
    given = [parameters[name].grad for name in ("one", "two")]
    return parameters["none"].grad is None and kept, all(x is not None and float(x.sum()) > 0 for x in given)


@pytest.mark.parametrize("kind", ["int8", "topk", "powersgd"])
def test_what_has_no_gradient_stays_without_one_between_pairs(pool: RankPool, kind: str) -> None:
    assert pool.run(missing_between_pairs, KINDS[kind]) == [(True, True)] * 4


def settled(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, steps: int) -> Tensor:
    """The variance without its bias after so many steps, each of its own gradient."""
    for _ in range(steps):
        parameter.grad = torch.randn(5, dtype=torch.float64)
        optimizer.step()
    state = optimizer.state[parameter]
    return state["exp_avg_sq"] / (1 - 0.999 ** int(state["step"]))


def test_adam_and_one_bit_adam_take_each_others_variance() -> None:
    """By state dicts, as checkpoints do: each goes on with the variance that the other had, not with a part of it."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    plain, frozen = torch.optim.AdamW([parameter]), FrozenVarianceAdam([parameter], 4, decoupled=True)
    wanted = settled(plain, parameter, 12)
    frozen.load_state_dict({**plain.state_dict(), "param_groups": frozen.state_dict()["param_groups"]})
    torch.testing.assert_close(settled(frozen, parameter, 30), wanted, rtol=1e-12, atol=0.0)
    was, step = parameter.detach().clone(), settled(frozen, parameter, 1)
    ratio = frozen.state[parameter]["exp_avg"] / (1 - 0.9**43) / (step.sqrt() + 1e-8)
    torch.testing.assert_close(parameter.detach(), was * (1 - 1e-5) - 1e-3 * ratio, rtol=1e-12, atol=0.0)
    plain.load_state_dict({**frozen.state_dict(), "param_groups": plain.state_dict()["param_groups"]})
    assert bool((settled(plain, parameter, 1) > 0.9 * wanted).all())


def taken_by_lamb(rank: int, world: int, folder: str) -> list[tuple[set[str], int]]:
    """What the optimizers of three programs keep of a parameter, each taken up from the one before; and their steps."""
    plain, found = replace(TRAINING, optimizer="lamb"), []
    programs = [made(MESHES["dp4"], TRAINING, "1bit-lamb"), Program(tiny.spec(dp=4, training=plain), tiny.program(1))]
    programs += [made(MESHES["dp4"], TRAINING, "1bit-lamb")]
    programs[0].load_weights(tiny.reference().state_dict())
    for number, program in enumerate(programs):
        if number:
            program.load_checkpoint(f"{folder}/{number - 1}")
        for batch in tiny.batches(START + 1):
            program.step(batch)
            program.optimizer.step()
        program.save_checkpoint(f"{folder}/{number}")
        state = next(iter(program.optimizer.state.values()))
        found.append((set(state), int(state["step"])))
    return found


def test_lamb_and_one_bit_lamb_take_each_other_s_moments(pool: RankPool, tmp_path: Path) -> None:
    """What stands beside a frozen variance is dropped where that moves on, and begins anew where it is frozen again."""
    plain, frozen = {"step", "exp_avg", "exp_avg_sq"}, {"exp_avg_sq_fresh", "mean_ratio", "factor"}
    found = pool.run(taken_by_lamb, str(tmp_path / "saved"))[0]
    assert found == [(plain | frozen, 3), (plain, 6), (plain | frozen, 9)]


def test_blocks_in_few_bits() -> None:
    """What a last block lacks of its elements is zero; one of zeros stays, and what isn't finite isn't hidden."""
    generator = torch.Generator().manual_seed(0)
    blocks, counts = torch.randn(4, 256, generator=generator), torch.tensor([[256], [256], [10], [256]])
    blocks[1], blocks[2, 10:], blocks[3, 7] = 0, 0, float("inf")
    near = INT8.decode(INT8.encode(blocks, counts), counts, torch.float32)
    assert float((near - blocks)[:3].abs().max()) <= float(blocks[:3].abs().max()) / 254 * 1.001
    signs = SIGNS.decode(SIGNS.encode(blocks, counts), counts, torch.float32)
    torch.testing.assert_close(signs[0], blocks[0].sign() * blocks[0].abs().mean())
    torch.testing.assert_close(signs[2, :10], blocks[2, :10].sign() * blocks[2, :10].abs().mean())
    assert not signs[1].any() and not signs[2, 10:].any() and not near[1].any()
    floating = FP8.decode(FP8.encode(blocks, counts), counts, torch.float32)
    least = blocks[:3].abs().amax(1, keepdim=True) / 448 * 2**-9  # what the smallest step is, of three bits
    assert bool(((floating - blocks)[:3].abs() <= torch.maximum(blocks[:3].abs() / 16, least) * 1.001).all())
    assert not floating[1].any() and not floating[2, 10:].any()
    assert not any(x[3].isfinite().any() for x in (near, floating, signs))
    nothing = torch.zeros(1, 260, dtype=torch.uint8)
    assert not any(code.decode(nothing, counts[:1], torch.float32).any() for code in (INT8, FP8))
