"""Mistakes of newcomers: each is one clear line that names what to write, or is understood as it was meant."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan import cli
from autoplan.errors import AutoplanError
from autoplan.runtime.program import Program
from autoplan.search.space.systems import read
from tests.attacks.attack import Attack, Place, Silent, Traceback, equal, refused, refused_command
from tests.fixtures import tiny_program as tiny
from tests.support.planning import parallelize_alone

ROOT = Path(__file__).resolve().parents[2]
MLP = ["plan", "--model", f"{ROOT}/examples/mlp.py:make_model", "--config", "depth=2", "--config", "width=16"]
ON = ["--cluster-spec", "1x4 cpu"]
QUICK = [*MLP, *ON, "--batch", "8", "--effort", "fast"]


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def planned(inputs: object = None, **options: object) -> autoplan.Plan:
    """A plan of a small model, unless what is given is refused."""
    given = {"loss_fn": square, "parallelism": autoplan.Parallelism(dp=4), **options}
    model = given.pop("model", None) or mlp()
    cluster = given.pop("on", "1x4 cpu")
    return parallelize_alone(model, cluster, torch.zeros(8, 8) if inputs is None else inputs, **given)


def command(name: str, arguments: list[str], *words: str, guards: str) -> Attack:
    return Attack("errors", name, guards, lambda place: refused_command(arguments, *words))


def call(name: str, act: Callable[[], object], *words: str, guards: str) -> Attack:
    return Attack("errors", name, guards, lambda place: refused(act, *words))


# -- what is understood ------------------------------------------------------------------------------------------------


def the_report_s_notation(place: Place) -> str:
    """What a report prints of a plan pins the same plan."""
    first = planned(parallelism="dp=2 tp=2")
    again = planned(parallelism=str(first))
    return equal(first.parallelism == again.parallelism and str(first) == str(again), str(again))


def every_alternative_s_notation(place: Place) -> str:
    plan = autoplan.parallelize(mlp(), "1x4 cpu", torch.zeros(8, 8), loss_fn=square, effort="fast")
    texts = [str(plan), "pp=2, 1F1B, 4 microbatches of 1, ZeRO-1, recompute 2 of 2 blocks (all selectively)"]
    found = [read(text) for text in texts]
    return equal(all(isinstance(each, autoplan.Parallelism) for each in found), "; ".join(texts))


def loose_clusters(place: Place) -> str:
    meant = {"8xH200": "1x8 h200", "h200x8": "1x8 h200", "2x8xh100-sxm": "2x8 h100-sxm", "1x4CPU": "1x4 cpu"}
    found = {text: str(autoplan.ClusterSpec.of(text)) for text in meant}
    return equal(found == meant, str(found))


def a_saved_folder(place: Place) -> str:
    """Its class and sizes, with where its weights are said."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 64}
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4)).save_pretrained(place.folder)
    said = printed(["plan", "--model", str(place.folder), *ON, "--batch", "8", "--seq", "8", "--effort", "fast",
                    "--parallelism", "ddp"])  # fmt: skip
    told = f"the weights in {place.folder}, which stay" in said
    return equal(told and "LlamaForCausalLM on 1x4 cpu" in said, said[:90])


def a_hub_name(place: Place) -> str:
    name = "hf:meta-llama/Meta-Llama-3-8B-Instruct"
    said = printed(["plan", "--model", name, "--cluster-spec", "1x8 h200", "--batch", "8", "--seq", "16",
                    "--effort", "fast", "--parallelism", "zero3"])  # fmt: skip
    return equal("is planned as hf:llama-3-8b; nothing is downloaded" in said, said.splitlines()[0])


def printed(arguments: list[str]) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    if code != 0:
        raise Traceback(err.getvalue()[-400:])
    return out.getvalue()


# -- folders -----------------------------------------------------------------------------------------------------------


def plan_file(content: bytes, *words: str) -> Callable[[Place], str]:
    def run(place: Place) -> str:
        (place.folder / "plan.json").write_bytes(content)
        for name in ("report", "verify", "what-if", "train"):
            said = refused_command([name, str(place.folder)], *words)
        return said

    return run


def a_file_for_a_folder(place: Place) -> str:
    (place.folder / "out").write_text("mine")
    said = refused_command([*QUICK, "--parallelism", "dp=4", "--export", str(place.folder / "out")], "is a file")
    return said if (place.folder / "out").read_text() == "mine" else "lost"


def a_read_only_place(place: Place) -> str:
    with patch("autoplan.export.folder.tempfile.mkdtemp", side_effect=PermissionError(13, "Permission denied")):
        return refused(lambda: planned().export(place.folder / "out"), "nothing can be written there", "Permission")


def a_foreign_config(place: Place) -> str:
    """Its class isn't transformers': another one in its place would be another model."""
    said = {"model_type": "llama", "architectures": ["MyLlama"], "hidden_size": 32}
    (place.folder / "config.json").write_text(json.dumps(said))
    return refused_command(["plan", "--model", str(place.folder), *ON], "no class for MyLlama")


def a_config_with_code(place: Place) -> str:
    said = {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}
    (place.folder / "config.json").write_text(json.dumps(said))
    (place.folder / "modeling.py").write_text("raise SystemExit('code of a folder ran')")
    return refused_command(["plan", "--model", str(place.folder), *ON], "none from a folder is run")


# -- train.py ----------------------------------------------------------------------------------------------------------


def script(*arguments: str, words: tuple[str, ...]) -> Callable[[Place], str]:
    """train.py told once, by the first of the ranks, with exit status 2."""

    def run(place: Place) -> str:
        file = place.folder / "train.py"
        file.write_text(resources.files("autoplan.emit").joinpath("templates/train.py.txt").read_text())
        said = place.pools.of(2).run(on_a_rank, str(file), list(arguments))
        told = [text.strip() for _, text in said if text.strip()]
        if any(code != 2 for code, _ in said):
            raise Silent(f"exit statuses {[code for code, _ in said]}: {told}")
        lacking = [word for word in words if word not in " ".join(told)]
        if len(told) != 1 or len(told[0].splitlines()) != 1 or lacking or "Traceback" in told[0]:
            raise Traceback(f"told {len(told)} times, it doesn't say {lacking}: {told}")
        return told[0]

    return run


def tiny_plan(folder: Path) -> SimpleNamespace:
    spec = tiny.spec(dp=2, pp=1, microbatches=2, zero=0)
    return SimpleNamespace(
        check_start=lambda *given: None, program=lambda timeout_s: Program(spec, tiny.program(1), timeout_s),
        predicted=SimpleNamespace(step_time_s=0.5, mfu=0.25), record=SimpleNamespace(model=spec.lowered),
    )  # fmt: skip


def on_a_rank(rank: int, world: int, file: str, arguments: list[str]) -> tuple[int, str]:
    """The script as torchrun starts it: with a file for its error beside those of the other ranks."""
    own = Path(file).parent / str(rank)
    own.mkdir(exist_ok=True)
    settings = {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_ERROR_FILE": str(own / "error.json")}
    said, code = io.StringIO(), 0
    with (
        patch("autoplan.load", tiny_plan),
        patch.object(sys, "argv", [file, *arguments]),
        patch.dict(os.environ, settings),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            runpy.run_path(file, run_name="__main__")
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
    return code, said.getvalue()


def labels_that_don_t_count(rank: int, world: int) -> str:
    spec = tiny.spec(dp=2, pp=1, microbatches=2, zero=0)
    with Program(spec, tiny.program(1)) as program:
        program.init_weights(0) if spec.init else program.load_weights(tiny.reference().state_dict())
        batch = {value.name: torch.zeros(value.type.shape, dtype=getattr(torch, value.type.dtype))
                 for value in spec.lowered.batch}  # fmt: skip
        batch = {name: x.fill_(-100) if "label" in name or "target" in name else x for name, x in batch.items()}
        try:
            return f"loss {float(program.step(batch))}"
        except AutoplanError as error:
            return str(error)


def only_ignored_labels(place: Place) -> str:
    found = place.pools.of(2).run(labels_that_don_t_count)
    if not all("no label of this batch counts" in each for each in found):
        raise Silent(str(found))
    return found[0]


GUARD = "a traceback, or pages of usage, for a newcomer's mistake"
UNREAD = "what is printed isn't understood"
GUESS = "another device, model or setting than was meant is planned, and nobody is told"
ATTACKS: tuple[Attack, ...] = (
    Attack("errors", "the report's notation as --parallelism", UNREAD, the_report_s_notation),
    Attack("errors", "headlines of plans read back", UNREAD, every_alternative_s_notation),
    Attack("errors", "clusters as people write them", GUARD, loose_clusters),
    Attack("errors", "a save_pretrained folder as --model", "its weights are dropped unsaid", a_saved_folder,
           slow=True),
    Attack("errors", "a name of the hub", GUARD, a_hub_name, slow=True),
    command("8xH100", [*MLP, "--cluster-spec", "8xH100"], '"1x8 h100-sxm"', '"1x8 h100-pcie"', guards=GUESS),
    command("64xA100", [*MLP, "--cluster-spec", "64xA100"], '"8x8 a100-sxm-80gb"', guards=GUESS),
    command("64xH200, whose machines hold eight", [*MLP, "--cluster-spec", "64xH200"], '"8x8 h200"', guards=GUESS),
    command("a cluster of 8e11 devices", [*MLP, "--cluster-spec", "99999999999x8 h200"], "more than 1,000,000",
            guards="the search never ends"),
    command("a cluster in two words", [*MLP, "--cluster-spec", "1x4", "cpu"], "stands in quotes", guards=GUARD),
    command("a network left out", [*MLP, "--cluster-spec", "1x4 cpu network="], "network=", guards=GUARD),
    command("a field of a parallelism given twice", [*QUICK, "--parallelism", "dp=4 dp=2"], "both 4 and 2",
            guards=GUESS),
    command("fsdp=4", [*QUICK, "--parallelism", "fsdp=4"], "write zero=3", guards=GUARD),
    command("a parallelism in other words", [*QUICK, "--parallelism", "dp=2 sideways"], "'sideways'", guards=GUESS),
    command("--training lr=", [*QUICK, "--training", "lr=1e-4"], "write learning_rate=1e-4", guards=GUARD),
    command("--training learning_rate=nan", [*QUICK, "--training", "learning_rate=nan"], "a number", guards=GUARD),
    command("an unknown command", ["pln"], "did you mean plan", guards=GUARD),
    command("no command", [], "no command is given", guards=GUARD),
    command("an unknown option", [*QUICK, "--verfy"], "did you mean --verify", guards=GUARD),
    command("another tool's option", [*QUICK, "--batch-size", "8"], "write --batch", guards=GUARD),
    command("--batch x", [*MLP, *ON, "--batch", "x"], "--batch 'x'", guards=GUARD),
    command("a model of the hub that isn't known", ["plan", "--model", "hf:meta-llama/Llama-3-9B", *ON],
            "nothing is downloaded", "hf:llama-3-8b", guards=GUESS),
    command("a model without hf:", ["plan", "--model", "llama", *ON], "write hf:llama", guards=GUARD),
    command("a file without a function", ["plan", "--model", f"{ROOT}/examples/mlp.py", *ON], ":make_model",
            guards=GUARD),
    command("a function misspelt", ["plan", "--model", f"{ROOT}/examples/mlp.py:mak_model", *ON],
            "did you mean make_model?", guards=GUARD),
    command("a folder that isn't a model's", ["plan", "--model", f"{ROOT}/examples", *ON], "no config.json",
            guards=GUARD),
    Attack("errors", "a class that transformers lacks", GUESS, a_foreign_config),
    Attack("errors", "a folder with code of its own", "the folder's code runs", a_config_with_code),
    Attack("errors", "a plan.json that isn't text", GUARD, plan_file(b"\xff\xfe\x80\x00", "no JSON")),
    Attack("errors", "an empty plan.json", GUARD, plan_file(b"", "no JSON")),
    Attack("errors", "a plan.json of 100,000 brackets", GUARD, plan_file(b"[" * 100_000, "no JSON")),
    Attack("errors", "a plan.json with a number of 5,000 digits", GUARD, plan_file(b"1" * 5000, "no JSON")),
    Attack("errors", "a file where the export belongs", "the file is lost", a_file_for_a_folder),
    Attack("errors", "a place where nothing can be written", GUARD, a_read_only_place),
    call("Training(lr=)", lambda: autoplan.Training(lr=1e-4), "write learning_rate=0.0001", guards=GUARD),
    call("Parallelism(fsdp=)", lambda: autoplan.Parallelism(fsdp=4), "write zero=3", guards=GUARD),
    call("Inference(optimizer=)", lambda: autoplan.Inference(optimizer="sgd"), "no 'optimizer'", guards=GUARD),
    call("ClusterSpec(gpus=)", lambda: autoplan.ClusterSpec(gpus=8), "write devices_per_node=8", guards=GUARD),
    call("an optimizer's class for its name", lambda: autoplan.Training(optimizer=torch.optim.SGD), "lower-case name",
         guards=GUARD),
    call("parallelize(cluster=)", lambda: autoplan.parallelize(mlp(), cluster="1x4 cpu"), "write cluster_spec=",
         guards=GUARD),
    call("parallelize without a model", lambda: autoplan.parallelize(), "missing", guards=GUARD),
    call("a class for a model", lambda: planned(model=nn.Linear), "in_features", guards=GUARD),
    call("a text for a model", lambda: planned(model="llama"), "no torch.nn.Module", guards=GUARD),
    call("lists for tensors", lambda: planned([[1.0, 2.0]]), "not a tensor", guards=GUARD),
    call("arrays for tensors", lambda: planned((np.zeros((8, 8), np.float32),)), "torch.as_tensor", guards=GUARD),
    call("a sparse batch", lambda: planned(torch.eye(8).to_sparse()), "dense", guards="it is planned as a dense one"),
    call("a batch of another width", lambda: planned(torch.zeros(8, 9)), "[8, 9]", guards=GUARD),
    call("a batch that doesn't divide", lambda: planned(torch.zeros(7, 8)), "a batch of 8 rows", guards=GUARD),
    call("a loss by its name", lambda: planned(loss_fn="mse"), "can't be called", guards=GUARD),
    call("a number for a cluster", lambda: planned(on=4), "not a cluster", guards=GUARD),
    call("a constraint on no operator", lambda: planned(constraints=[autoplan.pin("lineer", "S(1)")]),
         "did you mean linear?", guards="the constraint is dropped"),
    call("load(None)", lambda: autoplan.load(None), "no folder's path", guards=GUARD),
    call("a seed in letters", lambda: planned().verify(seed="x"), "a whole number", guards=GUARD),
    Attack("errors", "train.py --steps -3", "four tracebacks",
           script("--steps", "-3", words=("--steps", "at least 1"))),
    Attack("errors", "train.py --lr nan", "it trains with it", script("--lr", "nan", words=("--lr", "'nan'"))),
    Attack("errors", "train.py --seed junk", "four tracebacks", script("--seed", "junk", words=("--seed", "'junk'"))),
    Attack("errors", "train.py --timeout 0", "no rank ever starts",
           script("--timeout", "0", words=("--timeout",))),
    Attack("errors", "train.py with another's option", "four pages of usage",
           script("--num-steps", "9", words=("write --steps",))),
    Attack("errors", "train.py --data of nothing", "as many tracebacks as ranks",
           script("--data", "/nowhere", words=("no such file",))),
    Attack("errors", "train.py --weights of nothing", "as many tracebacks as ranks",
           script("--weights", "/nowhere", words=("/nowhere",))),
    Attack("errors", "labels that are all -100", "a loss that is nan without a cause", only_ignored_labels),
)  # fmt: skip
