from __future__ import annotations

import inspect
import pickle

import pytest

from autoplan import errors
from autoplan.errors import AutoplanError, ParallelismError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, AutoplanError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_reads_value_cause_remedy(kind: type[AutoplanError]) -> None:
    error = kind("dp=3", "it doesn't divide 4 devices.", "give 1, 2 or 4")
    assert str(error) == "dp=3: it doesn't divide 4 devices. give 1, 2 or 4."
    assert (error.value, error.cause, error.remedy) == ("dp=3", "it doesn't divide 4 devices", "give 1, 2 or 4")


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_processes(kind: type[AutoplanError]) -> None:
    error = pickle.loads(pickle.dumps(kind("value", "cause", "remedy")))
    assert type(error) is kind and str(error) == "value: cause. remedy."


def test_a_value_that_can_t_be_is_a_value_error_too() -> None:
    assert issubclass(ParallelismError, ValueError)
