"""Faults in the text of a rehearsed plan's program.py, each in a folder of its own."""

from __future__ import annotations

import ast
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoplan.export.folder import PROGRAM, seal_folder
from autoplan.rehearsal import rehearse
from autoplan.rehearsal.records import RankTrace
from tests.bench.mutations.traces import Mutation
from tests.bench.mutations.worlds import Rehearsed

ADDED: Mapping[str, str] = {
    "value asked for": "assert {0}.detach().sum().item() is not None",
    "tensor on the host": "{0} = {0} + torch.ones({0}.shape)",
    "activation kept alive": "self.kept = {0}",
}
"""By kind the line that is put behind one that makes a value."""
MAKES = ("linear", "silu", "scaled_dot_product_attention", "embedding")
"""Functions whose results are storages of their own, on the device."""


def program_mutations(world: Rehearsed, count: int, seed: int, root: Path) -> list[Mutation]:
    """So many faults, each kind in turn, at places by chance; folders are made in ``root``."""
    chance, text = random.Random(seed), (world.folder / PROGRAM).read_text()
    places, asked, faults = values_of(text), [], []
    for number in range(count):
        kind = list(ADDED)[number % len(ADDED)]
        line, name = chance.choice(places)
        folder = root / f"{world.folder.name}-{number}"
        shutil.copytree(world.folder, folder)
        lines = text.splitlines()
        indent = " " * (len(lines[line - 1]) - len(lines[line - 1].lstrip()))
        (folder / PROGRAM).write_text("\n".join([*lines[:line], indent + ADDED[kind].format(name), *lines[line:], ""]))
        seal_folder(folder)
        faults.append((kind, line))
        asked += [(folder, one.first, None, False) for one in world.classes]
    answers, each = rehearse.each_apart(asked), len(world.classes)
    firsts = [one.first for one in world.classes]
    return [
        told(world.name, kind, line, dict(zip(firsts, answers[each * n : each * (n + 1)], strict=True)))
        for n, (kind, line) in enumerate(faults)
    ]


def values_of(program: str) -> list[tuple[int, str]]:
    """(last line, name) of the statements in forwards that make a tensor of their own."""
    functions = [each for each in ast.walk(ast.parse(program)) if isinstance(each, ast.FunctionDef)]
    found = []
    for statement in (statement for each in functions if each.name == "forward" for statement in each.body):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            target, called = statement.targets[0], ast.unparse(statement.value.func)
            if isinstance(target, ast.Name) and called.rpartition(".")[2] in MAKES:
                found.append((statement.end_lineno or statement.lineno, target.id))
    return found


def told(plan: str, kind: str, line: int, answers: Mapping[int, RankTrace | str]) -> Mutation:
    """What the ranks' rehearsals say of a line put behind ``line``."""
    what, where = {
        "value asked for": ("host stop", line + 1),
        "tensor on the host": ("failed", line + 1),
        "activation kept alive": ("kept alive", line),
    }[kind]
    place = f"program.py:{where}"
    found = [(rank, said) for rank, answer in answers.items() for said in sayings(answer, what, place)]
    ranks = tuple(rank for rank, _ in found)
    return Mutation(plan, kind, ranks, frozenset({place}), found[0][1] if found else "")


def sayings(answer: RankTrace | str, what: str, place: str) -> Sequence[str]:
    """What a rank's rehearsal says of a fault of a kind at a place."""
    if isinstance(answer, str):
        return [answer] if what == "failed" and place in answer else []
    return [one.text for one in answer.findings if (one.what, one.line) == (what, place)]

