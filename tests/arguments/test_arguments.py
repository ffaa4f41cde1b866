"""Mistakes in arguments: one error each, which names the nearest."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from autoplan.arguments.command_line import Parser, number, seed, whole
from autoplan.errors import LaunchError


def parser() -> Parser:
    made = Parser(prog="train.py")
    made.add_argument("--steps", type=whole(1), default=100)
    made.add_argument("--lr", type=number(0))
    made.add_argument("--batch", type=int)
    made.add_argument("--data")
    made.add_argument("--effort", choices=("full", "fast"))
    made.add_argument("--model", required=True)
    return made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--model m --steps -3", "--steps: '-3' is not a whole number of at least 1. see train.py --help."),
        ("--model m --steps 1e3", "--steps: '1e3' is not a whole number"),
        ("--model m --lr nan", "--lr: 'nan' is not a number of at least 0"),
        ("--model m --batch x", "--batch 'x': it is not a number"),
        ("--model m --dat x", ""),
        ("--model m --dataa x", "--dataa: train.py has no such option. did you mean --data"),
        ("--model m --num-steps 3", "--num-steps: train.py has no such option. write --steps."),
        ("--model m --zzzzzz", "--zzzzzz: train.py has no such option. see train.py --help."),
        ("--model m more", 'more: train.py takes no such argument. a value with spaces stands in quotes: "… more"'),
        ("--model m --effort fats", "--effort fats: train.py has no such choice. did you mean fast?"),
        ("--model m --effort", "--effort: expected one argument"),
        ("", "train.py: it lacks --model."),
    ],
)
def test_a_mistake_is_one_error(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not said:  # an abbreviation, as argparse takes them
        assert parser().parse_args(given.split()).data == "x"
        return
    with pytest.raises(LaunchError) as caught:
        parser().parse_args(given.split())
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_a_command_within_names_its_own_options() -> None:
    top = Parser(prog="autoplan")
    commands = top.add_subparsers(required=True, metavar="command", parser_class=Parser)
    commands.add_parser("plan").add_argument("--verify", action="store_true")
    assert top.parse_args(["plan", "--verify"]).verify
    with pytest.raises(LaunchError, match=r"--verfy: autoplan plan has no such option\. did you mean --verify"):
        top.parse_args(["plan", "--verfy"])
    with pytest.raises(LaunchError, match=r"command plam: autoplan has no such choice\. did you mean plan"):
        top.parse_args(["plam"])
    with pytest.raises(LaunchError, match=r"autoplan: no command is given\. give one of plan; see autoplan --help"):
        top.parse_args([])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(whole(1), "3", 3), (whole(0), " 0 ", 0), (seed, "-7", -7), (number(0), "1e-3", 1e-3), (number(0), "0", 0.0)],
)
def test_a_value_is_read(kind: Callable[[str], float], text: str, value: float) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (whole(1), "0"), (whole(1), "1.5"), (whole(1), ""), (seed, "junk"), (seed, "9" * 25), (number(0), "inf"),
        (number(0), "-1"), (number(0, above=True), "0"), (number(0), "x"), (whole(0), "9" * 5000),
    ],
)  # fmt: skip
def test_another_value_is_refused(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not "):
        kind(text)
