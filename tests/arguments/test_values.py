from __future__ import annotations

import pytest

from autoplan.arguments.values import parse_settings
from autoplan.errors import InputsError

DEFAULTS = {"layers": 2, "eps": 1e-5, "tied": True, "act": "gelu", "betas": (0.9, 0.999), "clip": None,
            "sizes": [1, 2]}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("layers=4", 4), ("eps=1", 1.0), ("tied=false", False), ("tied=True", True), ("act=none", "none"),
        ("act=3", "3"), ("betas=0.9,0.95", (0.9, 0.95)), ("clip=1.0", 1.0), ("clip=none", None),
        ("sizes=[3,4]", [3, 4]), ("sizes=5", [5]), ("clip=word", "word"), ("act=a=b", "a=b"),
    ],
)  # fmt: skip
def test_a_value_takes_its_default_s_type(text: str, value: object) -> None:
    found = parse_settings([text], DEFAULTS, "the model")[text.split("=")[0]]
    assert found == value and type(found) is type(value)


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputsError, match=r"^layer=4: the model has no 'layer'\. did you mean layers\?$"):
        parse_settings(["layer=4"], DEFAULTS, "the model")


@pytest.mark.parametrize("text", ["layers=four", "layers=2.5", "layers=true", "tied=1", "eps=small"])
def test_another_type_is_refused(text: str) -> None:
    with pytest.raises(InputsError, match=rf"^{text}: the model takes (a whole number|a number|true or false) there"):
        parse_settings([text], DEFAULTS, "the model")


@pytest.mark.parametrize("text", ["layers", "=4", ""])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(InputsError, match=r"takes KEY=VALUE\. write for example num_layers=4"):
        parse_settings([text], DEFAULTS, "the model")


def test_a_key_is_given_once() -> None:
    with pytest.raises(InputsError, match=r"layers=4: a test has 'layers' already\. give it once"):
        parse_settings(["layers=2", "layers=4"], DEFAULTS, "a test")
