"""What a second reader tried on folders, files and the command line: names, pipes, odd values, weights that move."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

import autoplan
from autoplan.cluster.bandwidth import factors_of, read_factors
from autoplan.errors import AutoplanError
from autoplan.models.named import resolve_model
from autoplan.options import Training
from autoplan.runtime.checkpoint.state_json import latest_checkpoint
from autoplan.runtime.program import Program
from autoplan.runtime.weights.start_values import check_values
from tests.attacks.attack import Attack, Lost, Place, Silent, contents, equal, refused, refused_command, unharmed
from tests.attacks.checkpoints import RANKS, caught, load_refused, new_program, saved, train
from tests.attacks.weights import INDEX, tensors, turned_away
from tests.fixtures import tiny_program as tiny

EXTRA = {1: "one", "1": (1, [2.5, None]), "nan": float("inf"), (0, 1): {"(tuple)": True}, "ü": "\u2028", "": {}}


# -- checkpoints -------------------------------------------------------------------------------------------------------


def save_two(rank: int, world: int, folder: str) -> None:
    with new_program() as program:
        for step in (1, 2):
            train(program)
            program.save_checkpoint(f"{folder}/step-{step}")


def the_one_before(place: Place) -> str:
    place.pools.of(RANKS).run(save_two, str(place.folder))
    path = place.folder / "step-2" / "rank-1.tensors"
    content = bytearray(path.read_bytes())
    content[7] ^= 4
    path.write_bytes(content)
    step = place.folder / "step-2"
    return load_refused(place, step, "is damaged", f"the latest of the others, {place.folder}/step-1")


def save_large(rank: int, world: int, folder: str) -> None:
    with new_program() as program:
        with torch.no_grad():
            program.held[0].values.fill_(1e300)
        program.save_checkpoint(folder)


def beyond_the_range(place: Place) -> str:
    folder = place.folder / "step-1"
    place.pools.of(RANKS).run(save_large, str(folder))
    smaller = Training(precision="fp32", learning_rate=1e-2, compile=False)
    return load_refused(place, folder, "beyond the range of torch.float32", training=smaller)


def pipe(name: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        folder = saved(place)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        return load_refused(place, folder, "is damaged")

    return run


def a_folder_of_steps(place: Place) -> str:
    saved(place)
    return load_refused(place, place.folder, "no finished checkpoint", "latest_checkpoint")


def same_values(rank: int, world: int, folder: str, other: str) -> bool:
    found = []
    for path in (folder, other):
        with new_program() as program:
            program.load_checkpoint(path)
            found.append(dict(program.full_state_dict()))
    return all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def moved(change: Callable[[Path, Path], object]) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        folder, other = saved(place), place.folder / "elsewhere"
        kept = shutil.copytree(folder, place.folder / "kept")
        change(folder, other)
        same = place.pools.of(RANKS).run(same_values, str(kept), str(other))
        return equal(all(same), "the same values")

    return run


def extra_back(rank: int, world: int, folder: str) -> object:
    with new_program() as program:
        program.save_checkpoint(folder, extra={"mine": EXTRA})
        return program.load_checkpoint(folder)


def odd_extra(place: Place) -> str:
    found = place.pools.of(RANKS).run(extra_back, str(place.folder / "step-1"))
    same = all(getattr(each, "extra", each) == {"mine": EXTRA} for each in found)
    return equal(same, f"{found[0]}"[:80])


def save_by_two(rank: int, world: int, folder: str) -> AutoplanError | None:
    with new_program() as one:
        train(one)
        one.save_checkpoint(folder, asynchronous=True)
        with new_program() as two:
            return caught(lambda: two.save_checkpoint(folder))


def two_programs(place: Place) -> str:
    told = place.pools.of(RANKS).run(save_by_two, str(place.folder / "step-1"))
    if None in told:
        raise Silent("both were saved under one name")
    return str(told[0])


def no_path(rank: int, world: int, call: str, path: object) -> AutoplanError | str | None:
    with new_program() as program:
        try:
            getattr(program, call)(path)
        except AutoplanError as error:
            return error
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


def path_of_another_kind(call: str, path: object) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        told = place.pools.of(RANKS).run(no_path, call, path)
        if not all(isinstance(each, AutoplanError) for each in told):
            raise Silent(f"{told[0]}")
        return str(told[0])

    return run


def long_name(place: Place) -> str:
    return load_refused(place, place.folder / ("n" * 300), "name too long")


def bad_keep(rank: int, world: int, folder: str) -> AutoplanError | None:
    with new_program() as program:
        return caught(lambda: program.save_checkpoint(folder, keep=True))


def keep_true(place: Place) -> str:
    told = place.pools.of(RANKS).run(bad_keep, str(place.folder / "step-1"))
    if None in told:
        raise Silent("keep=True kept one")
    return str(told[0])


def leftovers(place: Place) -> str:
    """A folder in which every save was ended before its end has no checkpoint to go on from."""
    folder = saved(place)
    folder.rename(folder.with_name("step-1.01234567.tmp"))
    return equal(latest_checkpoint(place.folder) is None, "none is taken for finished")


# -- weights -----------------------------------------------------------------------------------------------------------


def pipe_of_weights(name: str, *words: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        save_file(tensors(), place.folder / "model.safetensors")
        os.mkfifo(place.folder / name)
        return turned_away(place, str(place.folder), *words)

    return run


def save_again(rank: int, world: int, folder: str) -> None:
    with Program(tiny.spec(), tiny.program()) as program:
        for seed in (1, 2):
            program.load_weights(tiny.reference(seed).state_dict())
            program.save_weights(folder)


def beside_a_tokenizer(place: Place) -> str:
    for name in ("tokenizer.json", "vocab.txt", "model.bin"):
        (place.folder / name).write_text(name)
    before = contents(place.folder)
    place.pools.of(1).run(save_again, str(place.folder))
    unharmed(before, place.folder)
    return equal((place.folder / "model.safetensors").is_file(), "saved twice beside them")


def with_constant(place: Place) -> str:
    text = b'{"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4e0]}}'
    (place.folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return turned_away(place, str(place.folder), "isn't a safetensors file")


# -- a save_pretrained folder ------------------------------------------------------------------------------------------


def gpt2(folder: Path) -> Path:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    return folder


def exported(place: Place) -> tuple[Path, autoplan.Plan]:
    """The folder of the weights, and the plan that was exported of it."""
    source = gpt2(place.folder / "source")
    request = resolve_model(str(source), (), 4, 8)
    plan = autoplan.parallelize(
        request.model, "1x2 cpu", request.example_inputs, parallelism=autoplan.Parallelism(dp=2), effort="fast"
    )
    assert request.weights is not None
    return source, autoplan.load(plan.starting_from(request.weights).export(place.folder / "out"))


def other_weights(place: Place) -> str:
    source, plan = exported(place)
    start = plan.record.start
    check_values(start, Path(start.folder))
    gpt2(source)
    return refused(lambda: check_values(start, Path(start.folder)), "other bytes", "train.py --weights")


def weights_gone(place: Place) -> str:
    source, plan = exported(place)
    before = contents(source)
    again = plan.export(place.folder / "again")
    unharmed(before, source)
    if (again / "weights").exists():
        raise Lost("the weights were copied after all")
    shutil.rmtree(source)
    start = autoplan.load(again).record.start
    return refused(lambda: check_values(start, Path(start.folder)), "is missing", "training starts from it")


def architecture(named: object) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        (place.folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": named}))
        return refused(lambda: resolve_model(str(place.folder)), "config.json" if named != ["pipeline"] else "pipeline")

    return run


# -- commands ----------------------------------------------------------------------------------------------------------


def command(*arguments: str, words: tuple[str, ...] = ()) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        return refused_command([each.replace("PLACE", str(place.folder)) for each in arguments], *words)

    return run


def bandwidth_of(text: str) -> Callable[[Place], str]:
    return lambda place: refused(lambda: factors_of(read_factors(text)), "bandwidth")


def a_folder_for_plan_json(place: Place) -> str:
    (place.folder / "plan.json").mkdir()
    return refused_command(["seal", str(place.folder)], "plan.json")


def of(item: str, name: str, guards: str, run: Callable[[Place], str]) -> Attack:
    return Attack(item, name, guards, run)


STATE = "state.json"
GUARD, HANGS, WRONG = "a traceback", "every rank waits for ever", "other values are trained"

ATTACKS: tuple[Attack, ...] = (
    of("checkpoint", "the latest of two damaged", "nobody says which one is left", the_one_before),
    of("checkpoint", "values of 1e300 into a plan in fp32", "parameters become infinite", beyond_the_range),
    of("checkpoint", "a pipe as state.json", HANGS, pipe("state.json")),
    of("checkpoint", "a pipe as a shard", HANGS, pipe("rank-1.tensors")),
    of("checkpoint", "load of the folder of all steps", "a traceback", a_folder_of_steps),
    of("checkpoint", "a checkpoint under another name", "it is refused", moved(lambda a, b: a.rename(b))),
    of("checkpoint", "a checkpoint by a link", "it is refused", moved(lambda a, b: b.symlink_to(a))),
    of("checkpoint", "extra with odd keys and values", "other keys come back", odd_extra),
    of("checkpoint", "two programs of one process, one name", "one replaces the other's", two_programs),
    of("checkpoint", "load_checkpoint(None)", GUARD, path_of_another_kind("load_checkpoint", None)),
    of("checkpoint", "save_checkpoint(5)", GUARD, path_of_another_kind("save_checkpoint", 5)),
    of("checkpoint", "a name of 300 letters", GUARD, long_name),
    of("checkpoint", "keep=True", "taken as 1", keep_true),
    of("checkpoint", "only a save that was ended", "it is taken for whole", leftovers),
    of("weights", "load_weights(None)", GUARD, path_of_another_kind("load_weights", None)),
    of("weights", "save_weights(5)", GUARD, path_of_another_kind("save_weights", 5)),
    of("weights", "a pipe as the index", HANGS, pipe_of_weights(INDEX, "isn't an index")),
    of("weights", "a pipe as the manifest", HANGS, pipe_of_weights("autoplan-weights.json", "autoplan-weights.json")),
    of("weights", "saved twice beside a tokenizer", "its files are gone", beside_a_tokenizer),
    of("weights", "a place of 4e0 in a header", WRONG, with_constant),
    of("files", "a planned folder's weights replaced", WRONG, other_weights),
    of("files", "a planned folder's weights removed", "training starts from others", weights_gone),
    of("files", "architectures that name a function", GUARD, architecture(["pipeline"])),
    of("files", "architectures that name a number", GUARD, architecture([5])),
    of("errors", "checkpoint verify of nothing", GUARD, command("checkpoint", "verify", "PLACE/none", words=(STATE,))),
    of("errors", "report of a name of 300 letters", GUARD, command("report", "n" * 300)),
    of("errors", "what-if with a bandwidth of nan", WRONG, bandwidth_of("nan")),
    of("errors", "what-if with a bandwidth of -1", WRONG, bandwidth_of("node:-1")),
    of("errors", "seal of a folder named plan.json", GUARD, a_folder_for_plan_json),
)  # fmt: skip
