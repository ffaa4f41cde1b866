"""What operators are called."""

from __future__ import annotations

import pytest
import torch

from autoplan.errors import RuleError
from autoplan.rules.operator_names import known_overload, names_of
from tests.support.custom_operators import scale


@pytest.mark.parametrize(
    "given",
    [torch.ops.tried.scale.default, torch.ops.tried.scale, scale, "tried::scale", "tried.scale.default"],
    ids=["overload", "packet", "definition", "torch's name", "our name"],
)
def test_every_way_to_name_an_operator(given: object) -> None:
    assert names_of(given) == ("tried.scale.default",)


def test_a_packet_means_all_its_overloads() -> None:
    assert {"aten.add.Tensor", "aten.add.Scalar"} <= set(names_of(torch.ops.aten.add))
    assert set(names_of("aten::add")) == set(names_of(torch.ops.aten.add))


def test_an_operator_that_is_not_there_yet_has_the_name_that_it_will_have() -> None:
    assert names_of("nowhere::later") == ("nowhere.later.default",)
    assert names_of("autoplan.dropout") == ("autoplan.dropout",)


@pytest.mark.parametrize("given", [torch.relu, len, None, "relu", "a.b.c.d", "", "a::"])
def test_what_is_no_operator_is_refused(given: object) -> None:
    with pytest.raises(RuleError, match="operator"):
        names_of(given)


def test_known_overload() -> None:
    assert known_overload("tried.scale.default") is torch.ops.tried.scale.default
    assert known_overload("nowhere.later.default") is None
    assert known_overload("aten.add.Nothing") is None
    assert known_overload("autoplan.dropout") is None
