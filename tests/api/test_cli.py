from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

import pytest

import autoplan
from autoplan.cli import EXAMPLE, main, parser
from autoplan.cli.typed_words import parallelism, training
from autoplan.errors import ParallelismError
from autoplan.ir.record import SCHEMA
from autoplan.options import Parallelism, Training
from tests.support.imported import imported_by

ROOT = Path(__file__).resolve().parents[2]
MLP = ["--model", f"{ROOT}/examples/mlp.py:make_model", "--config", "depth=3", "--config", "width=32"]
LLAMA = ["--model", "hf:llama"] + [
    word
    for setting in ("hidden_size=32", "intermediate_size=64", "num_hidden_layers=2", "num_attention_heads=4",
                    "vocab_size=64")
    for word in ("--config", setting)
]  # fmt: skip
ENGINES = (
    "transformers", "scipy", "highspy", "pulp", "sympy", "torch._dynamo", "torch.distributed.tensor",
    "torch.distributed.fsdp", "torch.distributed.checkpoint", "autoplan.trace", "autoplan.search.entry",
)  # fmt: skip
FILES = {"plan.json", "program.py", "train.py", "report.html"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "out"
    said = main(["plan", *MLP, "--cluster-spec", "1x4 cpu", "--batch", "16", "--parallelism", "dp=2,tp=2",
                 "--export", str(folder)])  # fmt: skip
    assert said == 0
    return folder


def test_the_version_is_the_project_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    said = capsys.readouterr().out
    assert said == f"autoplan {autoplan.__version__}\n"
    assert f'\nversion = "{said.removeprefix("autoplan ").strip()}"\n' in (ROOT / "pyproject.toml").read_text()


def test_a_mistyped_option_is_told_before_what_is_lacking(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--verson"], "--verson: autoplan has no such option. did you mean --version?"),
        (["plan", "--modl", "x"], "--modl: autoplan plan has no such option. did you mean --model"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err


def test_plan_writes_the_folder(exported: Path) -> None:
    assert {path.name for path in exported.iterdir()} == FILES


def test_commands_that_print_a_plan_import_no_engine(exported: Path, tmp_path: Path) -> None:
    folder, trace = str(exported), str(tmp_path / "step.json")
    commands = [["report", folder], ["report", folder, "--verbose"], ["diff", folder, folder], ["trace", folder, trace]]
    assert imported_by(commands, ENGINES, 0) == "[]"


def test_report_prints_what_plan_printed(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(exported)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Classifier on 1x4 cpu\n") and "dp=2 tp=2" in out.splitlines()[2]


def test_explain_takes_the_report_s_place(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", *LLAMA, "--cluster-spec", "1x2 cpu", "--batch", "4", "--seq", "8", "--parallelism", "tp=2"]
    assert main([*arguments, "--explain", "model.layers.0.mlp.down_proj"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("model.layers.0.mlp.down_proj, in the plan tp=2") and "operands -> result" in out


def test_an_exported_plan_is_asked_about_an_operator_or_another_plan(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(exported), "no.such"]) == 2 and "no.such" in capsys.readouterr().err
    assert main(["explain", str(exported), "dp=4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("dp=4, beside the plan dp=2 tp=2") and "as planned now: dp=4" in out


def test_devices_are_listed_and_each_figure_has_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["h200", "136.8", "989"] for line in listed)
    assert any(line.split()[0] == "ib-ndr" for line in listed if line)
    assert main(["devices", "ib-ndr"]) == 0
    assert "link.bandwidth" in capsys.readouterr().out
    assert main(["devices", "h200"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("memory.bandwidth"))
    assert line.split()[1:3] == ["4.8", "TB/s"] and "stas00/ml-engineering" in line
    assert main(["devices", "h10"]) == 2
    assert "h10: is neither a known device nor a known fabric; nearest: h100-pcie or" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*MLP, "--cluster-spec", "1x4 tpu"], "tpu"),
        ([*MLP, "--cluster-spec", "1x4 cuda"], "says what kind of device it is"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--training", "bf16"], "write for example precision=bf16-mixed."),
        ([*MLP, "--cluster-spec", "0x4 cpu"], "nodes = 0"),
        ([*MLP, "--cluster-spec", "8xH100"], 'Write "1x8 h100-pcie" or "1x8 h100-sxm"'),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--verfy"], "autoplan plan has no such option. did you mean --verify"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--training", "lr=1"], "--training has no 'lr'. write learning_rate=1."),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--training", "schedule=cosine"], "write lr_schedule=cosine."),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--parallelism", "pp=2,schedule=1f1b"], "write pipeline_schedule=1f1b."),
        ([*MLP, "--cluster-spec", "four cpus"], "'four cpus': is not a cluster"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--parallelism", "dp=3"], "dp=3"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--parallelism", "sideways"], "parallelism='sideways': no such system"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--parallelism", "dq=2"], "--parallelism has no 'dq'"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--batch", "7", "--parallelism", "dp=4"], "7"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--training", "precision=fp12"], "precision='fp12': no such precision"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--config", "breadth=3"], "breadth"),
        (["--model", "hf:llama", "--config", "layers=3", "--cluster-spec", "1x4 cpu"], "has no 'layers'"),
        (["--model", "nowhere.py:f", "--cluster-spec", "1x4 cpu"], "there is no such file"),
        ([*MLP, "--cluster-spec", "1x4 cpu", "--explain", "blocks.0.upp"], "the nearest names are blocks.0.up"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments, "--export", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("autoplan: error: ") and said in captured.err
    assert "Traceback" not in captured.err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace(f'"schema": {SCHEMA}', '"schema": 99'), "schema 99: this version of autoplan"),
        (lambda text: text[: len(text) // 2], "no JSON"),
        (lambda text: text.replace('"S(0)"', '"S(7)"', 1), "its content isn't what its checksum says"),
        (lambda text: "[]", "this isn't a plan"),
    ],
)
def test_an_edited_plan_is_refused(
    exported: Path, edit: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (exported / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(edit(text))  # type: ignore[operator]
    assert (tmp_path / "plan.json").read_text() != text
    assert main(["report", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def examples() -> list[list[str]]:
    """The commands that help gives, as a shell reads them, without the program's name."""
    lines = [line.strip() for line in EXAMPLE.splitlines() if line.startswith("  autoplan ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_help_s_examples_are_commands() -> None:
    assert len(examples()) >= 8
    for arguments in examples():
        assert parser().parse_args(arguments).command


@pytest.mark.slow
def test_help_s_examples_for_this_machine_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first try that doesn't fit, or names a model that isn't there, is a bad welcome."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    here = [arguments for arguments in examples() if arguments[0] == "plan" and "1x4 cpu" in arguments]
    assert len(here) == 2 and all(main(arguments) == 0 for arguments in here)
    assert main(["rehearse", "out/"]) == 0


def test_a_folder_without_a_plan_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "there is no plan.json" in capsys.readouterr().err


def test_settings_become_training_and_parallelism() -> None:
    assert training([]) is None
    assert training(["precision=bf16-mixed", "betas=0.9,0.95", "clip_grad_norm=1.0"]) == Training(
        precision="bf16-mixed", betas=(0.9, 0.95), clip_grad_norm=1.0
    )
    assert parallelism("zero3") == "zero3"
    assert parallelism("dp=2,recompute=full,sequence_parallel=true") == Parallelism(
        dp=2, recompute="full", sequence_parallel=True
    )
    assert parallelism("tensor=2x4").tensor == (2, 4)  # type: ignore[union-attr]
    with pytest.raises(ParallelismError, match=r"tensor=2.5: it is no product of sizes"):
        parallelism("tensor=2.5")


def test_the_module_runs_as_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["autoplan", "report", "nowhere"])
    with pytest.raises(SystemExit, match=r"^2$"):
        runpy.run_module("autoplan", run_name="__main__")
    assert capsys.readouterr().err == (
        "autoplan: error: nowhere: there is no plan.json. give a folder that plan.export() wrote.\n"
    )


def test_what_if_tells_both_plans_and_exports_the_new_one(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["what-if", str(exported), "--cluster-spec", "2x2 cpu", "--batch", "32", "--bandwidth", "0.5"]
    assert main([*asked, "--export", str(tmp_path / "new")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["as", "planned", "1x4", "cpu"] and "16 x 64" in lines[1]
    assert lines[2].split()[:5] == ["what", "if", "2x2", "cpu", "bandwidth=nic:0.5"] and "32 x 64" in lines[2]
    assert (tmp_path / "new" / "plan.json").is_file()


def test_compare_prints_a_table(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *MLP[1:], "1x2 cpu", "1x1 cpu", "--batch", "16", "--effort", "fast"]) == 0
    rows = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [sum(row.startswith(cluster) for row in rows) for cluster in ("1x2 cpu", "1x1 cpu")] == [1, 1]
    assert main(["compare", str(exported), "1x4 cpu", "--parallelism", "ddp", "--batch", "32"]) == 0
    assert "dp=4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seq", "64"], "has no sequence of tokens"),
        (["--bandwidth", "wide"], "bandwidth=wide: is no factor"),
        (["--bandwidth", "spine:2"], "bandwidth of 'spine': is no link"),
        (["--batch", "17"], "a batch of 17 rows"),
        (["--cluster-spec", "1x4 abacus"], "abacus"),
    ],
)
def test_what_if_names_mistakes(exported: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str) -> None:
    assert main(["what-if", str(exported), *more]) == 2
    err = capsys.readouterr().err
    assert err.startswith("autoplan: error: ") and said in err


def test_compare_names_mistakes(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(exported), "four"]) == 2 and "is not a cluster" in capsys.readouterr().err
    assert main(["compare", str(exported), "1x4 cpu", "--config", "width=3"]) == 2
    assert "the folder's plan has its model already" in capsys.readouterr().err
