from __future__ import annotations

import pytest
import torch

from autoplan.errors import ParallelismError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Inference, Parallelism, Training


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
        ({"pipeline_schedule": "2f2b"}, "pipeline_schedule='2f2b': no such choice"),
        ({"recompute": "some"}, "recompute='some': no such choice"),
        ({"offload": "everything"}, "offload='everything': no such choice"),
        ({"dp": True}, "dp=True: a size is a whole number"),
        ({"zero": True}, "zero=True: no such choice"),
        ({"sequence_parallel": "yes"}, "sequence_parallel='yes': no such choice"),
        ({"tensor": 4}, "tensor=4: a tensor axis is a tuple of one to 3 factors"),
        ({"tensor": [2, 2]}, "tensor=[2, 2]: a tensor axis is a tuple"),
        ({"tensor": (2.0, 2)}, "tensor=(2.0, 2): a tensor axis is a tuple"),
        ({"tensor": ()}, "tensor=(): a tensor axis is a tuple"),
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


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"learning_rate": "fast"}, "learning_rate='fast': it is a number of at least 0"),
        (
            {"optimizer": torch.optim.SGD},
            "optimizer=<class 'torch.optim.sgd.SGD'>: an optimizer is given by its lower-case name. give 'sgd', and",
        ),
        ({"momentum": -1}, "momentum=-1: it is a number"),
        ({"eps": float("nan")}, "eps=nan: it is a number"),
        ({"betas": (0.9, 1.5)}, "betas=(0.9, 1.5): they are a pair of numbers from 0 to below 1"),
        ({"betas": 0.9}, "betas=0.9: they are a pair"),
        ({"clip_grad_norm": "1"}, "clip_grad_norm='1': a norm is positive"),
        ({"compile": "no"}, "compile='no': it is compiled or not"),
        ({"seed": 0.5}, "seed=0.5: a seed is a whole number"),
        ({"learning_rate": None}, "learning_rate=None: it is a number"),
        ({"reduce_dtype": "fp64"}, "reduce_dtype='fp64': gradients are summed in one of ('fp32', 'bf16')"),
        ({"optimizer_options": "amsgrad"}, "optimizer_options 'amsgrad': they are values by name"),
        ({"optimizer_options": {1: 2}}, "optimizer_options {1: 2}: they are values by name"),
        ({"optimizer_options": {"foreach": all}}, "optimizer_options: foreach=<built-in function all>: plan.json"),
    ],
)
def test_a_training_that_can_t_be_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ParallelismError) as error:
        Training(**fields)
    assert str(error.value).startswith(said)


def test_an_inference_is_as_strict() -> None:
    with pytest.raises(ParallelismError, match=r"precision='fp8': no such precision"):
        Inference(precision="fp8")


def test_options_are_kept_sorted_and_frozen_however_they_are_given() -> None:
    given = {"rho": 0.9, "foreach": None, "eps": [1e-6, 2]}
    kept = (("eps", (1e-6, 2)), ("foreach", None), ("rho", 0.9))
    for options in (given, list(given.items()), tuple(given.items()), kept):
        assert Training(optimizer_options=options).optimizer_options == kept  # type: ignore[arg-type]
    assert Training(lr_schedule="constant").lr_schedule == LRSchedule() and Training().lr_schedule is None


def test_a_parallelism_prints_what_is_set_and_reads_back() -> None:
    pinned = Parallelism(dp=2, tensor=(2, 2), pipeline_schedule="1f1b")
    assert repr(pinned) == "Parallelism(dp=2, pipeline_schedule='1f1b', tensor=(2, 2))"
    assert eval(repr(pinned)) == pinned and repr(Parallelism()) == "Parallelism()"
