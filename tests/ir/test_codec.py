"""What is written is what is read; what isn't a plan is refused with the place."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import PlanFileError
from autoplan.ir.codec import decode, encode
from autoplan.ir.graph import DType, Node, Ref, TensorType
from autoplan.ir.layout import I, Layout, P, R, S
from autoplan.ir.mesh import Mesh
from autoplan.options import Parallelism
from autoplan.rules.registry import AxisStrategy

MESH = Mesh.of(dp=2, tp=4)
STATES = st.sampled_from([S(0), S(1), R, I, P])
ARGUMENTS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.builds(Ref, st.text()),
        st.builds(DType, st.sampled_from(["float32", "int64"])),
        st.complex_numbers(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=8,
)


def through_json(value: object, kind: object) -> object:
    return decode(kind, json.loads(json.dumps(encode(value))), "plan.json")


@given(STATES, STATES)
def test_layouts_survive(a, b):
    layout = Layout.of(2, {"dp": a, "tp": b}, MESH)
    assert through_json(layout, Layout) == layout


@given(ARGUMENTS)
def test_arguments_of_any_shape_survive(argument):
    node = Node("y", "aten.add.Tensor", (Ref("x"), argument), (("alpha", argument),), TensorType((2, 3), "float32"))
    assert through_json(node, Node) == node


@given(st.lists(STATES, max_size=3), STATES, st.booleans())
def test_strategies_survive(inputs, output, scaled):
    strategy = AxisStrategy(tuple(inputs), output, "k", "", False, scaled)
    assert through_json(strategy, AxisStrategy) == strategy


def test_optional_fields_survive():
    pinned = Parallelism(dp=4, pipeline_schedule="1f1b")
    assert through_json(pinned, Parallelism) == pinned


@dataclass(frozen=True)
class Pair:
    left: int
    right: tuple[str, ...]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"left": "1", "right": []}, "plan.json.left: int belongs here, found str '1'"),
        ({"left": True, "right": []}, "plan.json.left: int belongs here"),
        ({"left": 1}, "lacks ['right']"),
        ({"left": 1, "right": [], "middle": 0}, "unknown ['middle']"),
        ({"left": 1, "right": ["a", 2]}, "plan.json.right[1]: str belongs here"),
        ([1], "plan.json: dict belongs here"),
    ],
)
def test_nonsense_is_refused_with_its_place(data, said):
    with pytest.raises(PlanFileError) as caught:
        decode(Pair, data, "plan.json")
    assert said in str(caught.value)


def test_an_unknown_state_is_refused():
    with pytest.raises(PlanFileError, match=r"Q.*is no state"):
        decode(AxisStrategy, encode(AxisStrategy((R,), R)) | {"output": "Q"}, "plan.json")
