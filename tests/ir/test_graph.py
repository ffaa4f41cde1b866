from __future__ import annotations

import pytest

from autoplan.ir.graph import Node, Ref, TensorType, free_name, map_refs, walk_refs
from tests.support import hand_made


def test_bytes_are_elements_by_the_dtype_s() -> None:
    assert TensorType((3, 5), "bfloat16").bytes == 30
    assert TensorType((), "float64").bytes == 8
    assert TensorType((4, 0), "int64").bytes == 0


def test_what_can_carry_a_gradient() -> None:
    kinds = {dtype: TensorType((1,), dtype).floating for dtype in ("bfloat16", "complex64", "int64", "bool")}
    assert kinds == {"bfloat16": True, "complex64": True, "int64": False, "bool": False}


def test_operands_stand_in_the_order_of_the_arguments_nested_ones_too() -> None:
    kind = TensorType((2,), "float32")
    node = Node("n", "op", (Ref("a"), 3, (Ref("b"), (Ref("a"),)), None), (("mask", Ref("c")),), kind)
    assert node.operands == ("a", "b", "a", "c")
    assert [ref.name for ref in walk_refs((1, "x", Ref("y")))] == ["y"]


def test_references_are_replaced_in_order_and_the_structure_stays() -> None:
    names = iter(["x", "y"])
    argument = ((Ref("a"), 3), None, Ref("a"))
    assert map_refs(argument, lambda _: Ref(next(names))) == ((Ref("x"), 3), None, Ref("y"))


def test_a_free_name_has_the_first_number_that_is_free() -> None:
    assert free_name("x", {"y"}) == "x"
    assert free_name("x", {"x", "x_1", "x_3"}) == "x_2"
    assert free_name("X", {"X", "X2"}, first=2, between="") == "X3"


def test_a_free_name_among_thousands_takes_few_looks() -> None:
    class Taken(set[str]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            self.looks += 1
            return super().__contains__(name)

    taken = Taken({"x", *(f"x_{number}" for number in range(1, 10_000))})
    assert free_name("x", taken) == "x_10000" and taken.looks < 40


def test_gradients_are_carried_from_parameters_and_inputs_but_not_from_constants() -> None:
    loss = next(block for block in hand_made.llama().blocks if block.name == "Head")
    carries = loss.carries_gradient()
    assert {"x", "norm", "weight", "n", "logits", "loss"} <= carries
    assert not {"labels", "count"} & carries


def test_a_tied_parameter_stands_once_under_its_first_name() -> None:
    model = hand_made.llama(layers=2, tie=True)
    names = [parameter.name for parameter in model.parameters]
    assert names.count("0.weight") == 1 and "3.weight" not in names
    assert model.segments[-1].parameters[1] == "0.weight"
    assert model.parameter("0.weight").type.shape == (512, 64)
    with pytest.raises(KeyError):
        model.parameter("3.weight")
