"""The front door: what can't be planned is answered with value, cause and remedy, before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autoplan
from autoplan import AutoplanError, Parallelism
from autoplan.errors import ClusterError, DoesNotFitError, InputsError, NoRuleError, ParallelismError, TraceError
from tests.support.planning import alone
from tests.support.sampling import slow


class Plain(nn.Module):
    def __init__(self, work: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> None:
        super().__init__()
        self.first, self.second, self.work = nn.Linear(8, 16), nn.Linear(16, 4), work

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.second(self.work(self.first(rows)))


class Undecided(Plain):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.first(rows)
        if hidden.sum() > 0:
            hidden = -hidden
        return self.second(hidden)


BATCH = (torch.zeros(8, 8), torch.zeros(8, 4))


def plan(model: nn.Module, cluster: object = "1x4 cpu", batch: object = BATCH, **options: object) -> autoplan.Plan:
    with alone():
        return autoplan.parallelize(model, cluster, batch, loss_fn=F.mse_loss, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"cluster": "1x4 abacus"}, ClusterError, "abacus"),
        ({"cluster": "0x4 cpu"}, ClusterError, "nodes = 0"),
        ({"cluster": 4}, ClusterError, "4: is of type int, not a cluster"),
        ({"batch": None}, InputsError, "example_inputs=None: Plain has no example_inputs of its own. pass"),
        ({"batch": (1, 2)}, InputsError, "example_inputs[0] = 1: it is not a tensor"),
        ({"parallelism": Parallelism(dp=3)}, ParallelismError, "dp=3: they multiply to 3, and the cluster has 4"),
        ({"parallelism": Parallelism(dp=2, tp=4, pp=1)}, ParallelismError, "pp=1 dp=2 tp=4: they multiply to 8"),
        ({"parallelism": "sideways"}, ParallelismError, "parallelism='sideways': no such system. use one of auto, "),
        ({"parallelism": Parallelism(offload="parameters", zero=1)}, ParallelismError, "offload='parameters'"),
        ({"parallelism": Parallelism(dp=4, micro_batch=4)}, ParallelismError, "a batch of 8 rows: it does not"),
        slow(({"cluster": "1x4 cpu 0.000001GB"}, DoesNotFitError, "")),  # quick in test_plan.py
        (
            {"cluster": "1x4 v100-sxm2-16gb", "training": autoplan.Training(precision="bf16-mixed")}, ParallelismError,
            "precision='bf16-mixed': v100-sxm2-16gb has no peak for bfloat16. use one of fp32, fp64, fp16-mixed.",
        ),
    ],
)
def test_what_can_t_be_planned_is_named(options: dict, kind: type[AutoplanError], said: str) -> None:
    with pytest.raises(kind) as error:
        plan(Plain(), **options)
    assert str(error.value).startswith(said) or said in str(error.value).split(": ")[0]
    assert error.value.cause and error.value.remedy


def test_control_flow_that_depends_on_data_is_named_by_its_line() -> None:
    lines, start = inspect.getsourcelines(Undecided)
    line = start + next(i for i, text in enumerate(lines) if "if hidden.sum()" in text)
    with pytest.raises(TraceError) as error:
        plan(Undecided())
    assert f"test_api.py:{line}" in str(error.value) or f'test_api.py", line {line}' in str(error.value)


@pytest.mark.parametrize(
    ("work", "operator", "how"),
    [
        (lambda x: x * torch.nanmedian(x), "aten.nanmedian.default", "@autoplan.rule('aten.nanmedian."),
        (lambda x: x.mode(1, True).values * x, "aten.mode.default", "@autoplan.trace.form('aten.mode."),
    ],
)
def test_an_operator_of_which_nothing_is_known_is_named_with_how_to_teach_it(
    work: Callable[[torch.Tensor], torch.Tensor], operator: str, how: str
) -> None:
    with pytest.raises(NoRuleError) as error:
        plan(Plain(work))
    assert error.value.value == operator and how in error.value.remedy


def test_a_model_in_which_nothing_is_learnt_is_named() -> None:
    class Fixed(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.relu(rows)

    with pytest.raises(InputsError, match="no parameter reaches it, so there is nothing to learn"):
        autoplan.parallelize(Fixed(), "1x4 cpu", (torch.zeros(8, 8), torch.zeros(8, 8)), loss_fn=F.mse_loss)


def test_the_model_is_left_as_it_was() -> None:
    model = Plain()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = plan(model, parallelism=Parallelism(dp=4, zero=0))
    assert made.parallelism.dp == 4 and made.module is model and model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_every_field_of_the_chosen_parallelism_is_filled() -> None:
    chosen = plan(Plain()).parallelism
    assert chosen.dp * chosen.tp * chosen.pp == 4  # type: ignore[operator]
    # None: nothing is offloaded, no grid, every step synchronous, no context axis, a ring, no tables
    unused = {"offload", "tensor_system", "local_steps", "outer_optimizer", "cp_attention"}
    unused |= {"compression", "compression_rank", "compression_rate", "compression_within", "gossip", "servers",
               "staleness", "backups", "ahead", "tp_overlap", "ep_overlap", "all_reduce",
               "tables", "table_cache", "table_misses"}
    assert set(Parallelism.__dataclass_fields__) - set(chosen.pinned()) <= unused


def test_the_precision_is_the_cluster_s_unless_it_is_given() -> None:
    meta = tuple(t.to("meta") for t in BATCH)
    assert plan(Plain()).record.training.precision == "fp32"
    assert plan(Plain(), "1x4 h100-sxm", meta).record.training.precision == "bf16-mixed"
    training = autoplan.Training(precision="fp32")
    assert plan(Plain(), "1x4 h100-sxm", meta, training=training).record.training.precision == "fp32"


def test_an_old_name_says_the_new_one() -> None:
    with pytest.raises(InputsError, match=r"autoplan\.Schedule: it has another name\. write autoplan\.LRSchedule\."):
        getattr(autoplan, "Schedule")  # noqa: B009
    with pytest.raises(InputsError, match=r"write autoplan\.LRSchedule\."):
        exec("from autoplan import Schedule")
    assert not hasattr(autoplan, "Scheduler")
