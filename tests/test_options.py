from __future__ import annotations

import pytest

from autoplan.errors import ParallelismError
from autoplan.options import Parallelism, Training


def test_only_what_is_given_is_pinned() -> None:
    assert Parallelism().pinned() == {}
    assert Parallelism(dp=2, zero=0, sequence_parallel=False).pinned() == {
        "dp": 2, "zero": 0, "sequence_parallel": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dp": 0}, "dp=0: a size is a whole number of at least 1. give dp>=1."),
        ({"tp": 2.0}, "tp=2.0: a size is a whole number"),
        ({"zero": 4}, "zero=4: no such choice. use one of (0, 1, 2, 3), or None."),
        ({"schedule": "2f2b"}, "schedule='2f2b': no such choice"),
        ({"recompute": "some"}, "recompute='some': no such choice"),
        ({"offload": "everything"}, "offload='everything': no such choice"),
    ],
)
def test_a_field_that_can_t_be_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        Parallelism(**fields)
    assert str(error.value).startswith(said)


def test_precision_is_one_that_there_is() -> None:
    with pytest.raises(ParallelismError, match=r"precision='fp8': no such precision"):
        Training(precision="fp8")
    wider = Training(optimizer="sgd", precision="fp32").with_precision("fp64")
    assert (wider.optimizer, wider.precision) == ("sgd", "fp64")
