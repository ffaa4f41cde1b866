"""transformers' Trainer under arguments, samplers and collators of users: one case after another.

    trainer_options.py FOLDER DATA_RANKS PLAN|- CASE…     with a plan, under torchrun
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler
from transformers import Trainer as One

from autoplan.errors import AutoplanError
from autoplan.export.folder import program_spec
from autoplan.plan import Plan, load
from tests.support import trainer_loop as loop

NEVER = {"load_best_model_at_end": False, "save_strategy": "no", "eval_strategy": "no", "metric_for_best_model": None}
EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "eval_loss"}
AT_ONCE = {"gradient_accumulation_steps": 1}  # transformers drops, and carries over, parts of an accumulated step
PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "threshold": 1.0}}


class Lengths(loop.Tokens):
    """Rows of 4 to 16 tokens."""

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {name: value[: 4 + i * 7 % 13] for name, value in super().__getitem__(i).items()}


class Stream(IterableDataset):
    def __init__(self, rows: Dataset) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter([self.rows[i] for i in range(len(self.rows))])  # type: ignore[arg-type]


class Backwards(Sampler):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count - 1, -1, -1))

    def __len__(self) -> int:
        return self.count


class ByProcess(Backwards):
    """An order that each process shuffles by itself."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(os.getpid()).sample(range(self.count), self.count))


def padded(rows: list[dict[str, torch.Tensor]], length: int = 0) -> dict[str, torch.Tensor]:
    """To a length, or to that of the longest row."""
    room = length or max(len(row["labels"]) for row in rows)
    fill = {"input_ids": 0, "labels": -100}
    pad = torch.nn.functional.pad
    return {k: torch.stack([pad(row[k], (0, room - len(row[k])), value=v) for row in rows]) for k, v in fill.items()}


def padded_alike(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return padded(rows, loop.TOKENS)


def masked(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Half of the labels are drawn, as of a masked language model."""
    ids = torch.stack([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": torch.where(torch.rand(ids.shape) < 0.5, ids, -100)}


CASES: Mapping[str, tuple[dict[str, Any], Dataset, Callable | None, type[Sampler] | None]] = {
    "lengths": ({"train_sampling_strategy": "group_by_length"}, Lengths(38, 1), padded_alike, None),
    "longest": ({"accelerator_config": {"dispatch_batches": True}}, Lengths(36, 1), padded, None),
    "longest of a rank": ({}, Lengths(36, 1), padded, None),
    "backwards": ({}, loop.Tokens(36, 1), None, Backwards),
    "by process": ({}, loop.Tokens(36, 1), None, ByProcess),
    "drop last": ({"dataloader_drop_last": True, **AT_ONCE, **EVALUATED}, loop.Tokens(39, 1), None, None),
    "odd end": ({"max_grad_norm": 0.0}, loop.Tokens(38, 1), None, None),
    "stream": ({"max_steps": 8, **AT_ONCE}, Stream(loop.Tokens(36, 1)), None, None),
    "no skip": ({"save_strategy": "steps", "save_steps": 3, "ignore_data_skip": True}, loop.Tokens(36, 1), None, None),
    "plateau": ({"eval_accumulation_steps": 1, **EVALUATED, **PLATEAU}, loop.Tokens(24, 1), None, None),
    "workers": ({"dataloader_num_workers": 1}, loop.Tokens(16, 1), masked, None),
    "not finite": ({"learning_rate": 1e30}, loop.Tokens(36, 1), None, None),
}


def run(folder: str, ranks: int, case: str, kind: type, own: dict[str, Any]) -> dict[str, Any]:
    given, data, collate, order = CASES[case]

    class Mine(kind):  # type: ignore[misc, valid-type]
        def _get_train_sampler(self, *args: Any) -> Sampler | None:
            return order(len(self.train_dataset)) if order is not None else super()._get_train_sampler(*args)

    if "gradient_accumulation_steps" in given:
        given = {**given, "per_device_train_batch_size": loop.ROWS // ranks}

    def trainer() -> One:
        args = loop.arguments(f"{folder}/{case}", ranks, **NEVER | given)
        return Mine(
            model=loop.small_llama(), args=args, train_dataset=data, eval_dataset=loop.Tokens(13, 2),
            data_collator=collate, **own,
        )  # fmt: skip

    trained = trainer()
    try:
        trained.train()
        if "ignore_data_skip" in given:
            trained = ended(trained) or trainer()
            trained.train(resume_from_checkpoint=f"{folder}/{case}/checkpoint-3")
    except AutoplanError as error:
        return {"error": str(error)}
    finally:
        ended(trained)
    kept = ("loss", "grad_norm", "learning_rate", "eval_loss")
    return {"lines": [{k: line[k] for k in kept if k in line} for line in trained.state.log_history]}


@contextmanager
def read_once(folder: str) -> Iterator[Plan]:
    """A plan whose programs are each case's own, and made of one spec: what it says of other sizes is found once."""
    plan = load(folder)
    spec = program_spec(plan.record, folder, plan.lowered)
    assert spec.resized is not None
    spec = replace(spec, resized=functools.cache(spec.resized))
    with patch("autoplan.plan.program_spec", lambda *_: spec):
        yield plan


def ended(trained: One) -> None:
    if hasattr(trained, "program"):
        trained.program.close()


def main(folder: str, ranks: str, plan: str, *cases: str) -> None:
    gc.freeze()  # transformers collects after each training: what is imported by now isn't looked through again
    with ExitStack() as stack:
        if plan == "-":
            kind: type = One
            own: dict[str, Any] = {}
        else:
            from autoplan.integrations.transformers import Trainer  # noqa: PLC0415  one device needs none

            kind, own = Trainer, {"plan": stack.enter_context(read_once(plan))}
        found = {case: run(folder, int(ranks), case, kind, own) for case in cases}
    if os.environ.get("RANK", "0") == "0":
        Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
