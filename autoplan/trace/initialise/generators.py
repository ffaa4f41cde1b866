"""What stands in for torch's default generator while a function is recorded, and what it must leave as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
import torch

Refuse = Callable[[str], NoReturn]


class RecordedGenerator:
    """Seeds and states of torch's default generator, written down in the order of the draws.

    note    takes ("seed", its value), ("save", name of a state) or ("restore", name of a state)
    refuse  raises, with the reason
    """

    def __init__(self, note: Callable[[str, int | str], None], refuse: Refuse) -> None:
        self.note, self.refuse = note, refuse
        self.states: dict[int, str] = {}
        self.alive: list[torch.Tensor] = []

    def manual_seed(self, seed: int) -> RecordedGenerator:
        self.note("seed", int(seed))
        return self

    def get_state(self) -> torch.Tensor:
        state = torch.default_generator.get_state()
        self.alive.append(state)  # so that no address is used twice
        self.states[state.data_ptr()] = f"state{len(self.states)}"
        self.note("save", self.states[state.data_ptr()])
        return state

    def set_state(self, state: torch.Tensor) -> None:
        if state.data_ptr() not in self.states:
            self.refuse("it sets a state of torch's generator that comes from elsewhere")
        self.note("restore", self.states[state.data_ptr()])

    def seed(self) -> int:
        self.refuse("it seeds torch's generator with a number that differs from call to call")

    def initial_seed(self) -> int:
        self.refuse("it reads the seed")


@contextmanager
def left_alone() -> Iterator[None]:
    """Whatever is drawn, seeded or set within it is afterwards as before: torch's generator on the CPU, Python's,
    NumPy's, and the default dtype."""
    drawn, python, numpy = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.default_generator.set_state(drawn)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_default_dtype(dtype)


class Elsewhere:
    """Whether random numbers were drawn from Python's or NumPy's generator since it was made."""

    def __init__(self) -> None:
        self.python, self.numpy = random.getstate(), numpy_state()

    def drawn(self) -> bool:
        return random.getstate() != self.python or numpy_state() != self.numpy


def numpy_state() -> tuple:
    name, keys, *rest = np.random.get_state(legacy=True)
    return name, np.asarray(keys).tobytes(), *rest
