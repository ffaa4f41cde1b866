"""The one-rank program beside the module on the same device, eager and compiled."""

from __future__ import annotations

import json
import statistics

import torch

from tests.bench.gpu.attempt import attempted
from tests.bench.gpu.clock import Act, in_turns, kernel_times, seconds
from tests.bench.gpu.plans import OneRank, folder_of, module_on_device, running, step_of
from tests.bench.gpu.result import Result
from tests.bench.gpu.setting import Setting

PRECISIONS, ASKED = ("fp32", "bf16-mixed"), 1.00
MODELS = ("Llama", "GPT-2, dropout", "Mixtral")
ROUNDS, SMALL_ROUNDS = 8, 4


def pairs(setting: Setting) -> list[OneRank]:
    """In float32 one: its time is that of the products."""
    if setting.small:
        return [OneRank(MODELS[0], PRECISIONS[0], False)]
    half = [OneRank(model, PRECISIONS[1], compiled) for compiled in (True, False) for model in MODELS]
    return [*half, OneRank(MODELS[0], PRECISIONS[0], False)]


def prepare(setting: Setting) -> None:
    for asked in pairs(setting):
        folder_of(setting, asked)


def run(setting: Setting) -> Result:
    rows: list[tuple[str, ...]] = []
    wrong: list[str] = []
    for asked in pairs(setting):
        name = f"{asked.model}, {asked.precision}, {'compiled' if asked.compiled else 'eager'}"
        found = attempted(lambda asked=asked: pair(setting, asked), name, wrong)
        if found is not None:
            rows.append(found[0])
            print(*found[0], sep=" | ", flush=True)
            wrong += [f"{name}: {found[1]:.2f}"] if found[1] > ASKED else []
    told = (
        "Seconds of a step and its update, ours over the module's, in turns: the quartiles of the rounds' ratios. "
        f"Under bf16-mixed the module runs within autocast. Asked: at most {ASKED:.2f}. Losses are of the first step, "
        "from the same values; dropout draws otherwise."
    )
    heads = ("model", "precision", "module", "module, ms", "ratio", "quartiles", "kernels", "module's", "losses")
    return Result("One rank beside the module", told, heads, tuple(rows), tuple(wrong))


def pair(setting: Setting, asked: OneRank) -> tuple[tuple[str, ...], float]:
    rounds = SMALL_ROUNDS if setting.small else ROUNDS
    with running(setting, asked) as program:
        ours, theirs = step_of(program, setting), module_step(setting, asked)
        losses = " : ".join(f"{float(act()):.4f}" for act in (ours, theirs))
        for act in (ours, theirs):
            act()
        low, middle, high = statistics.quantiles(in_turns(ours, theirs, setting.on, rounds), n=4)
        milliseconds = seconds(theirs, setting.on, 3) * 1e3
        times = {name: kernel_times(act, setting.on) for name, act in (("ours", ours), ("module", theirs))}
    (setting.folder / f"kernels-{asked.slug}.json").write_text(json.dumps(times, indent=1))
    counts = tuple(str(sum(count for count, _ in each.values())) for each in times.values())
    kind = "compiled" if asked.compiled else "eager"
    figures = (f"{milliseconds:.1f}", f"{middle:.2f}", f"{low:.2f}–{high:.2f}", *counts, losses)
    return (asked.model, asked.precision, kind, *figures), middle


def module_step(setting: Setting, asked: OneRank) -> Act:
    module = module_on_device(setting, asked.model)
    called = torch.compile(module) if asked.compiled else module
    batch = {name: value.to(setting.on) for name, value in setting.batch().items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)

    def act() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(setting.on.type, torch.bfloat16, enabled=asked.precision == "bf16-mixed"):
            loss = called(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return act
