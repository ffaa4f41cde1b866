"""Folders of exported plans: damaged, edited, mixed up, and exported over what is there."""

from __future__ import annotations

import functools
import json
import os
import py_compile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from autoplan import cli
from autoplan.export.folder import opened, write_folder
from autoplan.ir.record import PlanRecord
from autoplan.runtime.program import Program
from tests.attacks.attack import Attack, Lost, Place, Silent, contents, equal, refused, refused_command, unharmed
from tests.fixtures import tiny_program as tiny
from tests.support.hand_made import llama
from tests.support.records import record_of

EXTRA = {"report.html": "<html></html>", "pretrained/config.json": '{"rms_norm_eps": 1e-05}'}


@functools.cache
def record(tp: int = 2) -> PlanRecord:
    return record_of(llama(), "1x4 cpu", dp=4 // tp, tp=tp, pp=1)


def export(folder: Path, tp: int = 2) -> Path:
    return write_folder(record(tp), folder / "out", "a plan", EXTRA)


def loaded(folder: Path) -> object:
    """As autoplan.load(folder).program() reads it."""
    return opened(folder).module()


def edited(name: str, change: Callable[[bytes], bytes], *words: str) -> Callable[[Place], str]:
    """A file of an exported folder is another."""

    def run(place: Place) -> str:
        folder = export(place.folder)
        content = (folder / name).read_bytes()
        assert change(content) != content
        (folder / name).write_bytes(change(content))
        return refused(lambda: loaded(folder), *words)

    return run


def digit(content: bytes) -> bytes:
    """A bit of a number is the other one: 4 -> 5."""
    at = content.index(b'"microbatches": ') + len(b'"microbatches": ')
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def other_program(place: Place) -> str:
    folder, other = export(place.folder), export(place.folder / "other", tp=4)
    (folder / "program.py").write_bytes((other / "program.py").read_bytes())
    return refused(lambda: loaded(folder), "isn't the file that was exported", "autoplan seal")


def other_plan(place: Place) -> str:
    folder, other = export(place.folder), export(place.folder / "other", tp=4)
    (folder / "plan.json").write_bytes((other / "plan.json").read_bytes())
    return refused(lambda: loaded(folder), "isn't the file that was exported")


def cached_program(place: Place) -> str:
    """Python runs what it has cached of a file with the same time and length."""
    folder = export(place.folder)
    file, trace = folder / "program.py", place.folder / "code-ran"
    text, status = file.read_text(), file.stat()
    file.write_text(f"open({str(trace)!r}, 'w').close()\n".ljust(len(text)))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    py_compile.compile(str(file), doraise=True)
    file.write_text(text)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    loaded(folder)
    return equal(not trace.exists(), "the program beside the plan ran, not what was cached of another")


def sealed_on_purpose(place: Place) -> str:
    folder = export(place.folder)
    (folder / "program.py").write_text((folder / "program.py").read_text() + "MINE = 1\n")
    refused(lambda: loaded(folder), "autoplan seal")
    if cli.main(["seal", str(folder)]) != 0:
        raise Silent("an edit on purpose is taken by nothing")
    return equal(getattr(loaded(folder), "MINE", 0) == 1, "an edit that was sealed runs")


def sealed_broken(place: Place) -> str:
    folder = export(place.folder)
    (folder / "program.py").write_text("def f(:\n")
    before = contents(folder)
    said = refused_command(["seal", str(folder)], "isn't Python")
    unharmed(before, folder)
    return said


def sealed_nonsense(place: Place) -> str:
    folder = export(place.folder)
    text = (folder / "plan.json").read_text()
    (folder / "plan.json").write_text(text.replace('"tp": 2', '"tp": 3', 1))
    before = contents(folder)
    said = refused_command(["seal", str(folder)], "tp is 3")
    unharmed(before, folder)
    return said


def over_the_user_s(name: str) -> Callable[[Place], str]:
    """The folder is the user's own, and has a file of that name."""

    def run(place: Place) -> str:
        (place.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (place.folder / name).write_text("my own")
        before = contents(place.folder)
        said = refused(lambda: write_folder(record(), place.folder, "a plan", EXTRA), "would be replaced")
        unharmed(before, place.folder)
        if contents(place.folder).keys() != before.keys():
            raise Lost("half of an export is left")
        return said

    return run


def edited_train(place: Place) -> str:
    folder = export(place.folder)
    (folder / "train.py").write_text("my own data and schedule")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        export(place.folder, tp=4)
    if (folder / "train.py").read_text() != "my own data and schedule":
        raise Lost("an edited train.py is gone")
    told = [str(w.message) for w in said if "train.py was edited" in str(w.message)]
    if not told:
        raise Silent("nobody was told that train.py stays")
    opened(folder)
    return told[0]


def over_an_edit(name: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        folder = export(place.folder)
        (folder / name).write_text((folder / name).read_text().replace("Llama", "Lama"))
        before = contents(folder)
        said = refused(lambda: export(place.folder, tp=4), "edited since", "would be replaced")
        unharmed(before, folder)
        return said

    return run


def stale(place: Place) -> str:
    """The next plan's model brings no config.json: that of the plan before must not lie beside its weights."""
    folder = export(place.folder)
    write_folder(record(), folder, "a plan", {"report.html": ""})
    return equal(not (folder / "pretrained" / "config.json").exists(), "nothing of the plan before is left")


def through_a_link(place: Place) -> str:
    mine = place.folder / "my_train.py"
    mine.write_text("my own")
    (place.folder / "out").mkdir()
    (place.folder / "out" / "train.py").symlink_to(mine)
    said = refused(lambda: export(place.folder), "would be replaced")
    if mine.read_text() != "my own":
        raise Lost("a file behind a link is gone")
    return said


def onto_a_file(place: Place) -> str:
    (place.folder / "out").write_text("my own")
    said = refused(lambda: export(place.folder), "it is a file")
    if (place.folder / "out").read_text() != "my own":
        raise Lost("a file is gone")
    return said


def removed(name: str, *words: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        folder = export(place.folder)
        (folder / name).unlink()
        return refused(lambda: loaded(folder), *words)

    return run


def older(place: Place) -> str:
    """A plan of this schema without a checksum, as one writes it by hand."""
    folder = export(place.folder)
    data = json.loads((folder / "plan.json").read_text())
    del data["sha256"]
    (folder / "plan.json").write_text(json.dumps(data))
    return refused(lambda: loaded(folder), "its content isn't what its checksum says")


def open_now() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def closed_again(rank: int, world: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Descriptors and threads before and after four programs in a process group that they don't own."""
    dist.barrier()
    before = open_now()
    for _ in range(4):
        with Program(tiny.spec(tp=2, dp=2, zero=1), tiny.program()) as program:
            program.load_weights(tiny.reference().state_dict())
            program.step(next(tiny.batches(1)))
    return before, open_now()


def left_open(place: Place) -> str:
    for before, after in place.pools.of(4).run(closed_again):
        if any(b > a for a, b in zip(before, after, strict=True)):
            raise Silent(f"descriptors and threads: {before} before, {after} after")
    return f"equal: {after} descriptors and threads after as before"


def step_after_close(rank: int, world: int) -> None:
    with Program(tiny.spec(), tiny.program()) as program:
        program.load_weights(tiny.reference().state_dict())
    program.step(next(tiny.batches(1)))


WRONG, GONE = "a program runs that isn't the plan's", "work of the user's is gone"
ATTACKS: tuple[Attack, ...] = (
    Attack("files", "a number in plan.json with a bit flipped", WRONG, edited("plan.json", digit, "checksum says")),
    Attack("files", "a plan.json edited by hand", WRONG,
           edited("plan.json", lambda c: c.replace(b"Llama", b"Lama"), "or was edited", "autoplan seal")),
    Attack("files", "a plan.json without a checksum", WRONG, older),
    Attack("files", "a binary plan.json", "a traceback", edited("plan.json", lambda c: b"\x80\x04\xff" + c, "no JSON")),
    Attack("files", "a plan.json nested without end", "a traceback",
           edited("plan.json", lambda c: b"[" * 200_000, "no JSON")),
    Attack("files", "a number of 5,000 digits in plan.json", "a traceback",
           edited("plan.json", lambda c: b'{"schema": ' + b"7" * 5000 + b"}", "no JSON")),
    Attack("files", "an edited program.py", WRONG,
           edited("program.py", lambda c: c + b"import os\n", "isn't the file that was exported", "autoplan seal")),
    Attack("files", "another plan's program.py", WRONG, other_program),
    Attack("files", "another plan's plan.json", WRONG, other_plan),
    Attack("files", "what Python cached of another program", WRONG, cached_program),
    Attack("files", "a config.json with another epsilon", "trained weights are run otherwise",
           edited("pretrained/config.json", lambda c: c.replace(b"1e-05", b"1e-04"), "isn't the file that was")),
    Attack("files", "a plan without its program", WRONG, removed("program.py", "no program.py")),
    Attack("files", "a program without its plan", WRONG, removed("plan.json", "no plan.json")),
    Attack("files", "a plan without its config.json", "saved weights are no folder for from_pretrained",
           removed("pretrained/config.json", "is missing, which was exported with it")),
    Attack("files", "a program edited on purpose", "there is no way to run it", sealed_on_purpose),
    Attack("files", "sealing what isn't Python", WRONG, sealed_broken),
    Attack("files", "sealing a plan that can't be run", WRONG, sealed_nonsense),
    Attack("files", "exporting into the user's own folder with a train.py", GONE, over_the_user_s("train.py")),
    Attack("files", "exporting into the user's own folder with a plan.json", GONE, over_the_user_s("plan.json")),
    Attack("files", "exporting over the user's pretrained/config.json", GONE,
           over_the_user_s("pretrained/config.json")),
    Attack("files", "exporting over an edited train.py", GONE, edited_train),
    Attack("files", "exporting over an edited program.py", GONE, over_an_edit("program.py")),
    Attack("files", "exporting over an edited plan.json", GONE, over_an_edit("plan.json")),
    Attack("files", "exporting over a link", GONE, through_a_link),
    Attack("files", "exporting onto a file", GONE, onto_a_file),
    Attack("files", "exporting another model's plan", "the config.json of the model before lies there", stale),
    Attack("files", "programs closed in a process group of the user's", "descriptors and threads stay", left_open),
    Attack("files", "a step of a closed program", "it computes without its groups",
           lambda place: refused(lambda: place.pools.of(1).run(step_after_close), "a program that is closed")),
)  # fmt: skip
