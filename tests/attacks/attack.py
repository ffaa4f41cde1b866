"""The vocabulary of attacks, and what they are written with."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autoplan import cli
from autoplan.errors import AutoplanError
from autoplan.verify.local_ranks import RankError, RankPool


class Silent(AssertionError):
    """A wrong result, or something dropped, and nobody was told."""


class Lost(AssertionError):
    """Values or files of the user's are gone."""


class Traceback(AssertionError):
    """An error that doesn't say what to mend."""


@dataclass(frozen=True)
class Pools:
    """Local ranks that live on between attacks, by their number."""

    stack: contextlib.ExitStack
    known: dict[int, RankPool]

    def of(self, ranks: int) -> RankPool:
        if ranks not in self.known:
            self.known[ranks] = self.stack.enter_context(RankPool(ranks, timeout_s=240))
        return self.known[ranks]


@dataclass(frozen=True)
class Place:
    """Where an attack happens. ``folder`` is empty and its own."""

    folder: Path
    pools: Pools


@dataclass(frozen=True)
class Attack:
    """One attack.

    item    of what it attacks: "initialisation", "model", "ranks", "loop", "checkpoint", "weights", "files",
            "inference", "errors"
    name    what is done
    guards  the wrong outcome that it guards against
    run     does it, and returns what was seen: "equal …" or the error's text; raises Silent or Lost
    slow    whether it takes more than about two seconds
    """

    item: str
    name: str
    guards: str
    run: Callable[[Place], str]
    slow: bool = False


def registering(item: str, attacks: list[Attack]) -> Callable[..., Callable]:
    """A decorator that adds a function, under a name, to the attacks on the item."""

    def attack(name: str, guards: str, slow: bool = False) -> Callable:
        def register(function: Callable[[Place], str]) -> Callable[[Place], str]:
            attacks.append(Attack(item, name, guards, function, slow))
            return function

        return register

    return attack


def refused(call: Callable[[], object], *words: str) -> str:
    """The error's text; Silent where the call goes through, Traceback where its error lacks a word or isn't ours."""
    try:
        found = call()
    except RankError as error:
        return clear(error.__cause__, words)
    except Exception as error:
        return clear(error, words)
    raise Silent(f"nothing was refused: {found!r}"[:200])


def clear(error: BaseException | None, words: tuple[str, ...]) -> str:
    """The text of one of autoplan's own errors that says all of these words."""
    if not isinstance(error, AutoplanError):
        raise Traceback(f"{type(error).__name__}: {error}"[:400])
    lacking = [word for word in words if word not in str(error)]
    if lacking:
        raise Traceback(f"it doesn't say {lacking}: {error}")
    return str(error)


def refused_command(arguments: list[str], *words: str) -> str:
    """One line of ``autoplan …`` on stderr, and exit code 2."""
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(told):
        try:
            code = cli.main(arguments)
        except SystemExit as error:  # argparse's own
            code = error.code if isinstance(error.code, int) else 1
        except Exception as error:
            raise Traceback(f"{type(error).__name__}: {error}"[:400]) from None
    if code == 0:
        raise Silent(f"autoplan {' '.join(arguments)} went through")
    text = said.getvalue().strip()
    lacking = [word for word in words if word not in text]
    if code != 2 or lacking or "Traceback" in text:
        raise Traceback(f"exit code {code}, it doesn't say {lacking}: {text}"[:600])
    return text.splitlines()[-1]


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file below a folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def unharmed(before: dict[str, str], folder: Path) -> None:
    """Lost where a file that was there is gone or has changed."""
    after = contents(folder)
    gone = [name for name, value in before.items() if after.get(name) != value]
    if gone:
        raise Lost(f"gone or changed: {', '.join(gone)}")


def equal(condition: bool, what: str) -> str:
    """What was seen, where it is as on one device; Silent otherwise."""
    if not condition:
        raise Silent(what)
    return f"equal: {what}"
