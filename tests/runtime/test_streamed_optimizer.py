"""The optimizer's state on disks: the same update as in memory, nothing left behind, disks that are full or fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import autoplan
from autoplan.arguments.environment import NVME
from autoplan.errors import DiskError
from autoplan.options import Training
from autoplan.runtime.memory.disk_memory import DiskMemory, file_system_of, on_disk
from autoplan.runtime.optim.gathered_optimizer import Group, LocalParameter
from autoplan.runtime.optim.streamed_optimizer import StreamedOptimizer
from autoplan.runtime.parallel.own_box import Part
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program import Program
from autoplan.verify.local_ranks import RankPool
from tests.fixtures import tiny_program as tiny
from tests.support.sampling import sampled

PLANS = {
    "dp4": dict(dp=4, microbatches=2),
    "tp2 dp2 zero2": dict(tp=2, dp=2, zero=2, microbatches=2),
    "zero3": dict(dp=4, zero=3),
    "tied over pp2": dict(pp=2, dp=2, zero=1, microbatches=2, pipeline_schedule="1f1b"),
}
GROUPS = ({"match": "*bias", "lr": 5e-3},)
HOW = {
    "adamw": Training(learning_rate=1e-2, clip_grad_norm=0.1, optimizer_options={"amsgrad": True}, compile=False),
    "sgd": Training("sgd", learning_rate=1e-2, momentum=0.9, groups=GROUPS, compile=False),
    "rmsprop": Training("rmsprop", learning_rate=1e-3, compile=False),
}
CASES = [(plan, how) for plan in PLANS for how in HOW]


def made(plan: str, how: str, offload: str, precision: str) -> Program:
    training = HOW[how].with_precision(precision)
    dtype = {"fp32": "float32", "bf16-mixed": "bfloat16"}[precision]
    spec = tiny.in_dtype(tiny.spec(**PLANS[plan], offload=offload, training=training), dtype)  # type: ignore[arg-type]
    program = Program(spec, tiny.program(len(spec.lowered.stages)))
    program.load_weights({name: value.float() for name, value in tiny.reference().state_dict().items()})
    return program


def trained(program: Program, first: int, last: int) -> Mapping[str, Tensor]:
    for batch in list(tiny.batches(last))[first:]:
        program.step(batch)
        program.optimizer.step()
    return dict(program.full_state_dict())


Found = tuple[Mapping[str, Tensor], Mapping[str, Tensor], bool, bool]


def both(rank: int, world: int, plan: str, how: str, precision: str, folder: str) -> Found:
    """Parameters after four steps: in memory; on disks, with a checkpoint in between that a plan in memory has read and
    written on. Whether all of the state lies on the disk, and whether a file is left there."""
    with made(plan, how, "optimizer", precision) as program:
        wanted = trained(program, 0, 4)
    os.environ[NVME] = folder
    try:
        with made(plan, how, "nvme", precision) as program:
            trained(program, 0, 1)
            program.save_checkpoint(f"{folder}/one", asynchronous=True)
        with made(plan, how, "optimizer", precision) as program:
            program.load_checkpoint(f"{folder}/one")
            trained(program, 1, 2)
            program.save_checkpoint(f"{folder}/two")
        with made(plan, how, "nvme", precision) as program:
            program.load_checkpoint(f"{folder}/two")
            loaded = away(program)
            found = trained(program, 2, 4)
            return wanted, found, loaded and away(program), any(Path(folder).glob("autoplan-*"))
    finally:
        del os.environ[NVME]


def away(program: Program) -> bool:
    """Whether masters and each field of their state that has as many elements lie on the disk. A shard without any,
    where ranks are more than rows, lies nowhere."""
    masters = [h.updated for h in program.held if h.stored.trainable and h.updated.numel()]
    states = [v for p in masters for v in program.optimizer.state[p].values() if v.shape == p.shape]
    return bool(states) and all(on_disk(each) for each in (*masters, *states))


@pytest.mark.parametrize(("plan", "how"), sampled(CASES, [("tp2 dp2 zero2", "adamw"), ("tied over pp2", "sgd")]))
@pytest.mark.parametrize("precision", sampled(["fp32", "bf16-mixed"], ["bf16-mixed"]))
def test_an_update_from_the_disk_is_that_of_memory(
    pool: RankPool, plan: str, how: str, precision: str, tmp_path: Path
) -> None:
    results = pool.run(both, plan, how, precision, str(tmp_path))
    wanted, found, *_ = results[0]
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert all(lies_there and not left for *_, lies_there, left in results)


def test_nothing_is_updated_where_gradients_overflowed(tmp_path: Path) -> None:
    """Then no parameter has one; nor has any of a stage whose parameters are all frozen."""
    disk, (stored, *_) = DiskMemory(tmp_path), tiny.spec().lowered.parameters
    master, parameter = nn.Parameter(disk.zeros((2, 3), torch.float32)), nn.Parameter(torch.ones(2, 3))
    held = ShardedParameter(stored, parameter, (), Part((0, 0), (2, 3)), 1, master)
    group = Group(torch.optim.AdamW, "default", {"lr": 1.0}, (LocalParameter(master),))
    optimizer = StreamedOptimizer([group], {master: held}, disk)
    optimizer.step()
    assert not optimizer.state and bool((parameter == 1).all())
    parameter.grad = torch.ones(2, 3)
    optimizer.step()
    assert torch.allclose(parameter.detach(), torch.full((2, 3), -1.0)) and on_disk(optimizer.state[master]["exp_avg"])
    disk.close()


def test_memory_of_a_disk_is_given_up_once_it_is_written() -> None:
    """Anonymous memory doesn't grow by what is stored; the process' pages of files go once they are written."""
    code = """
import torch
from autoplan.runtime.memory.disk_memory import DiskMemory
def held(kind):
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(kind)) / 1024
disk = DiskMemory()
before, files = held("RssAnon"), held("RssFile")
kept = [disk.zeros((1 << 22,), torch.float32) for _ in range(4)]  # 64 MiB
for number, each in enumerate(kept):
    each.fill_(number)
full = held("RssFile")
disk.write_behind(kept).result()
after = held("RssFile")
disk.read_ahead(kept).result()
print(held("RssAnon") - before, full - files, after - files, [float(each[-1]) for each in kept])
disk.close()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    anonymous, full, after, values = ran.stdout.split(" ", 3)
    assert float(anonymous) < 20 and float(full) > 60 and float(after) < 8 and values.strip() == "[0.0, 1.0, 2.0, 3.0]"


def test_a_folder_that_is_no_disk(tmp_path: Path) -> None:
    assert file_system_of(Path("/proc")) == "proc" and file_system_of(Path("/proc/self")) == "proc"
    with pytest.raises(DiskError, match=f"no such folder.*{NVME}"):
        DiskMemory(tmp_path / "nothing").zeros((2,), torch.float32)
    if file_system_of(Path("/dev/shm")) == "tmpfs":
        with pytest.raises(DiskError, match="tmpfs"):
            DiskMemory("/dev/shm").zeros((2,), torch.float32)


def test_a_full_disk_is_told_when_memory_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskError, match=r"0\.00 GB more .*No space left.*make room"):
        DiskMemory(tmp_path).zeros((2, 3), torch.float32)
    assert not list(tmp_path.iterdir())


def test_pages_that_cannot_be_had_are_an_error_and_no_signal(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(bytes(1 << 16))
    lost = torch.from_file(str(file), shared=True, size=1 << 14)
    os.truncate(file, 0)  # a page of it ends a process that touches it, as one on a broken disk does
    disk = DiskMemory(tmp_path)
    with pytest.raises(DiskError, match="can't be read: Bad address"):
        disk.read_ahead([lost]).result()
    disk.close()


@pytest.mark.parametrize(("call", "done"), [("read", "read"), ("write", "written")])
def test_a_failing_disk_ends_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, done: str) -> None:
    disk = DiskMemory(tmp_path)
    kept = nn.Parameter(disk.zeros((5,), torch.float32))

    def fails(tensor: Tensor) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, call, fails)
    with pytest.raises(DiskError, match=f"can't be {done}: Input/output error.*last checkpoint"):
        (disk.read_ahead if call == "read" else disk.write_behind)([kept.detach()]).result()
    disk.close()


TRAINS = """
import sys, torch, autoplan
held = lambda: next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) * 1024
class Peak(torch.utils._python_dispatch.TorchDispatchMode):
    most = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        Peak.most = max(Peak.most, held())
        return result
plan, folder = autoplan.load(sys.argv[1]), sys.argv[2]
with plan.program() as program:
    program.init_weights()
    latest = program.latest_checkpoint(folder)
    if latest is not None:
        program.load_checkpoint(latest)
    row = torch.linspace(-1, 1, WIDTH).expand(4, WIDTH)
    program.step((row, row))
    program.optimizer.step()  # what the process takes once is taken
    before = held()
    with Peak():
        for step in range(program.steps, int(sys.argv[3])):
            loss = program.step((row, row))
            program.optimizer.step()
            program.save_checkpoint(f"{folder}/step-{program.steps}")
    print("found", Peak.most - before, loss.item(), program.steps)
"""
WIDTH = 2048  # 16.8 MB a layer in float32


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return (self.layers(x) - target).pow(2).mean()


@pytest.mark.slow
def test_training_takes_a_few_parameters_of_memory_beside_the_device(tmp_path: Path) -> None:
    """134 MB of parameters, 403 MB of masters and moments: an update holds a third of that, and less, in memory of the
    process' own. A run that is broken off goes on from its checkpoint, as the unbroken one."""
    rows = torch.zeros(4, WIDTH)
    pinned = autoplan.Parallelism(dp=1, tp=1, pp=1, offload="nvme")
    plan = autoplan.parallelize(Wide(), "1x1 cpu", (rows, rows), parallelism=pinned)
    folder = plan.export(tmp_path / "out")

    def run(checkpoints: str, steps: int) -> tuple[int, float, int]:
        (tmp_path / checkpoints).mkdir(exist_ok=True)
        code, own = TRAINS.replace("WIDTH", str(WIDTH)), {**os.environ, NVME: str(tmp_path)}
        command = [sys.executable, "-c", code, str(folder), str(tmp_path / checkpoints), str(steps)]
        ran = subprocess.run(command, capture_output=True, text=True, env=own)
        assert ran.returncode == 0, ran.stderr
        _, more, loss, taken = next(line for line in ran.stdout.splitlines() if line.startswith("found")).split()
        return int(more), float(loss), int(taken)

    more, loss, steps = run("unbroken", 4)
    states = 3 * sum(p.numel() * 4 for p in Wide().parameters())
    gradients = states // 3  # of the device, whose memory a processor's is
    assert more < gradients + states // 3 and steps == 4
    assert run("broken off", 2)[2] == 2
    assert run("broken off", 4)[1:] == (loss, 4)
    assert not list(tmp_path.glob("autoplan-*"))
