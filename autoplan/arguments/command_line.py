"""The arguments of commands and scripts: a mistake is one error with its remedy, not pages of usage."""

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from autoplan.arguments.keywords import nearest
from autoplan.arguments.synonyms import OPTION_NAMES
from autoplan.errors import LaunchError

MOST_SEED = 2**62
_INVALID = re.compile(r"argument (\S+): invalid (?:int|float) value: (.*)")
_CHOICE = re.compile(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", re.DOTALL)
_REQUIRED = re.compile(r"the following arguments are required: (.*)")


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are a ``LaunchError`` each, that names the nearest option, command or choice."""

    def error(self, message: str) -> NoReturn:
        help_text = f"see {self.prog} --help"
        if match := _REQUIRED.fullmatch(message):
            commands = next((list(a.choices) for a in self._actions if a.metavar == match[1] and a.choices), None)
            if commands:
                remedy = f"give one of {', '.join(commands)}; {help_text}"
                raise LaunchError(self.prog, f"no {match[1]} is given", remedy)
            raise LaunchError(self.prog, f"it lacks {match[1].removesuffix(', …')}", help_text)
        if match := _CHOICE.fullmatch(message):
            choices = re.findall(r"[\w.-]+", match[3])
            near = nearest(match[2], choices)
            remedy = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(choices)}"
            raise LaunchError(f"{match[1]} {match[2]}", f"{self.prog} has no such choice", remedy)
        if match := _INVALID.fullmatch(message):
            raise LaunchError(f"{match[1]} {match[2]}", "it is not a number", help_text)
        what, colon, said = message.partition(": ")
        raise LaunchError(what.removeprefix("argument ") if colon else self.prog, said or message, help_text)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        first = next(iter(sys.argv[1:] if args is None else args), "").partition("=")[0]
        options = [option for action in self._actions for option in action.option_strings]
        if first.startswith("--") and not any(option.startswith(first) for option in options):
            raise self.unknown([first])  # before what is lacking is told: it may be what this was meant for
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            raise self.unknown(rest)
        return found, rest

    def unknown(self, rest: Sequence[str]) -> LaunchError:
        """The error for what no option takes."""
        given = rest[0].partition("=")[0]
        if not given.startswith("-"):
            remedy = f'a value with spaces stands in quotes: "… {rest[0]}"; or see {self.prog} --help'
            return LaunchError(rest[0], f"{self.prog} takes no such argument", remedy)
        options = [option for action in self._actions for option in action.option_strings]
        other = OPTION_NAMES.get(given.lstrip("-").replace("_", "-"))
        near = nearest(given, options)
        if other is not None and other.split()[0] in options:
            remedy = f"write {other}"
        elif (start := self.before_the_rest()) is not None:
            remedy = f"what a script takes follows: {start} {given} …"
            remedy += f"; or did you mean {' or '.join(near)}?" if near else ""
        else:
            remedy = f"did you mean {' or '.join(near)}?" if near else f"see {self.prog} --help"
        return LaunchError(given, f"{self.prog} has no such option", remedy)

    def before_the_rest(self) -> str | None:
        """"autoplan train FOLDER", of a command that hands on what follows; None for others."""
        if not any(action.nargs == argparse.REMAINDER for action in self._actions):
            return None
        own = (a.dest.upper() for a in self._actions if not a.option_strings and a.nargs != argparse.REMAINDER)
        return " ".join((self.prog, *own))


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an argument that is a whole number from ``least`` on."""

    def read(text: str) -> int:
        found = int(text) if re.fullmatch(r"[+-]?\d{1,30}", text.strip(), re.ASCII) else None
        if found is None or found < least or (most is not None and found > most):
            limit = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limit}")
        return found

    return read


def seed(text: str) -> int:
    """The type of a seed."""
    return whole(-MOST_SEED, MOST_SEED)(text)


def number(least: float, above: bool = False) -> Callable[[str], float]:
    """The type of an argument that is a finite number from ``least`` on, or above it."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not math.isfinite(found) or found < least or (above and found == least):
            limit = f"{'above' if above else 'of at least'} {least:g}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {limit}")
        return found

    return read
