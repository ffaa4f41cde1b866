"""Unknown keywords name the nearest, and what is decorated is as it was otherwise."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest

from autoplan.arguments.keywords import keywords, near_text, nearest, shown
from autoplan.cluster import ClusterSpec
from autoplan.errors import AutoplanError, ClusterError, InputsError, ParallelismError
from autoplan.lr_schedule import LRSchedule
from autoplan.options import Inference, Parallelism, Training


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: Training(lr=1e-4), ParallelismError, "lr=0.0001: Training has no 'lr'. write learning_rate=0.0001."),
        (lambda: Training(optimiser="sgd"), ParallelismError, "did you mean optimizer"),
        (lambda: Training(max_grad_norm=1.0), ParallelismError, "write clip_grad_norm=1.0."),
        (lambda: Training(capacity_factor=1.25), ParallelismError, "write expert_capacity=1.25."),
        (lambda: Training(router_z_loss=1e-3), ParallelismError, "write model code for it: the loss has"),
        (lambda: Training(expert_choice=True), ParallelismError, "write model code for it: a router's topk"),
        (lambda: Training(bf16=True), ParallelismError, "write precision='bf16-mixed'."),
        (lambda: replace(Training(), LR=3), ParallelismError, "write learning_rate=3."),
        (lambda: Training(*range(40)), ParallelismError, "Training(): too many positional arguments"),
        (lambda: Parallelism(fsdp=4), ParallelismError, "fsdp=4: Parallelism has no 'fsdp'. write zero=3."),
        (lambda: Parallelism(tensor_parallel_size=8), ParallelismError, "write tp=8."),
        (lambda: Parallelism(dq=2), ParallelismError, "did you mean dp?"),
        (lambda: Training(schedule="cosine"), ParallelismError, "write lr_schedule=cosine."),
        (lambda: Parallelism(schedule="1f1b"), ParallelismError, "write pipeline_schedule=1f1b."),
        (lambda: LRSchedule(num_training_steps=9), ParallelismError, "write steps=9."),
        (lambda: Inference(zzz=1), ParallelismError, "use one of precision, compile."),
        (lambda: ClusterSpec(nodes=1, gpus=8), ClusterError, "ClusterSpec has no 'gpus'. write devices_per_node=8."),
        (lambda: ClusterSpec(1, 8, "cpu", memory_gb=60), ClusterError, "memory_bytes, in bytes"),
    ],
)  # fmt: skip
def test_an_unknown_keyword_names_the_field(call: Callable[[], object], kind: type[AutoplanError], said: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert said in str(caught.value)


@pytest.mark.parametrize("made", [Training(learning_rate=1e-4), Parallelism(dp=2), LRSchedule(), Inference()])
def test_a_decorated_dataclass_is_one_as_before(made: object) -> None:
    assert pickle.loads(pickle.dumps(made)) == made == replace(made)  # type: ignore[type-var]
    assert hash(made) == hash(replace(made))  # type: ignore[type-var]
    with pytest.raises(FrozenInstanceError):
        made.precision = "fp64"  # type: ignore[attr-defined]
    assert list(inspect.signature(type(made)).parameters) == [f.name for f in fields(made)]  # type: ignore[arg-type]


@keywords(InputsError, {"inputs": "batch"})
def scaled(batch: int, times: int = 2) -> int:
    """Doubled."""
    return batch * times


@keywords(InputsError)
def named(batch: int, *, times: int = 2) -> int:
    return batch * times


def test_a_function_takes_what_it_took() -> None:
    assert scaled(3) == 6 and scaled(batch=3, times=3) == 9
    assert scaled.__doc__ == "Doubled." and scaled.__name__ == "scaled"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: scaled(inputs=3), "inputs=3: scaled has no 'inputs'. write batch=3."),
        (lambda: scaled(3, time=2), "time=2: scaled has no 'time'. did you mean times?"),
        (lambda: scaled(), "scaled(): missing a required argument: 'batch'. it takes batch, times."),
        (lambda: named(3, 4), "named(): too many positional arguments. it takes batch; by name times."),  # type: ignore
        (lambda: scaled(3, batch=4), "scaled(): multiple values for argument 'batch'"),
    ],
)
def test_a_call_that_does_not_fit_says_what_fits(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputsError) as caught:
        call()
    assert str(caught.value).startswith(said)


def test_a_type_error_within_stays_one() -> None:
    with pytest.raises(TypeError):
        scaled(None)  # type: ignore[arg-type]


def test_near_names_don_t_mind_capitals() -> None:
    assert nearest("LineR", ["linear", "Linear2", "conv"])[0] == "linear"
    assert near_text("zzz", ["a", "b"], "hf:") == "use one of hf:a, hf:b"
    assert near_text("lin", ["line"]) == "did you mean line?"


def test_a_long_value_is_told_in_short() -> None:
    assert len(shown("x" * 10_000)) < 70 and shown([1, 2]) == "[1, 2]"


@dataclass(frozen=True)
class Plain:
    size: int


def test_a_class_keeps_its_type() -> None:
    assert keywords(InputsError)(Plain) is Plain
    with pytest.raises(InputsError, match=r"sizes=3: Plain has no 'sizes'\. did you mean size\?"):
        Plain(sizes=3)  # type: ignore[call-arg]
