"""Plans whose steps aren't one device's are verified against a process that follows their rule, or say why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import autoplan
from autoplan.errors import VerificationError
from autoplan.options import Parallelism, Training
from autoplan.runtime.optim.asynchronous.diloco import OuterSteps
from autoplan.runtime.optim.asynchronous.stashed_versions import StashedVersions
from autoplan.runtime.parallel.compression.powersgd import LowRankSums
from tests.support import zoo
from tests.support.planning import parallelize_unproved
from tests.support.sampling import slow

TRAINING = Training(learning_rate=1e-2, clip_grad_norm=1.0, compile=False)
LOCAL = Parallelism(dp=2, tp=1, pp=1, zero=0, micro_batch=2, local_steps=8)
OUTER = Parallelism(dp=2, tp=1, pp=1, zero=0, micro_batch=2, local_steps=8, outer_optimizer="nesterov")
LOW_RANK = Parallelism(dp=2, tp=1, pp=1, zero=0, micro_batch=2, compression="powersgd", compression_rank=1)
INT8 = Parallelism(dp=2, tp=1, pp=1, zero=0, micro_batch=2, compression="int8")
TOP_K = replace(INT8, compression="topk", compression_rate=0.1)
GOSSIP = Parallelism(dp=2, tp=1, pp=1, zero=0, micro_batch=2, gossip="ring")
SERVERS = Parallelism(micro_batch=2, servers=2, staleness=1)
STALE = Parallelism(dp=1, tp=1, pp=2, zero=0, micro_batch=2, pipeline_schedule="pipedream-2bw")


def planned(parallelism: Parallelism) -> autoplan.Plan:
    module, batch, loss_fn = zoo.small("mlp")
    one_bit = parallelism.compressed is not None and parallelism.compressed.one_bit
    training = replace(TRAINING, clip_grad_norm=None) if one_bit or parallelism.backups else TRAINING
    training = replace(training, optimizer="lamb") if parallelism.compression == "1bit-lamb" else training
    cluster = f"1x{2 * (parallelism.compression_within or 1)} cpu"
    return parallelize_unproved(module, cluster, batch, loss_fn=loss_fn, training=training, parallelism=parallelism)


RULES = [(LOCAL, "local SGD's rule"), (OUTER, "DiLoCo's rule"), (STALE, "PipeDream-2BW's rule")]
RULES += [(replace(STALE, pipeline_schedule="pipedream-vertical-sync"), "PipeDream's rule with vertical sync")]
RULES += [(GOSSIP, "gossip's rule, neighbours on the ring graph averaged every step")]
RULES += [(SERVERS, "delayed gradients' rule, gradients of the weights 1 update before")]
RULES += [(replace(SERVERS, staleness=None, backups=1), "backup workers' rule, the mean of all but 1 workers")]
RULES += [(LOW_RANK, "PowerSGD's rule, gradients of rank 1")]
RULES += [(replace(TOP_K, dp=4, micro_batch=1, compression_within=2), "top-k's rule, 0.1 of each replica's elements")]
RULES += [(INT8, "int8's rule, each replica's gradient rounded")]
RULES += [(replace(INT8, compression="fp8"), "fp8's rule, each replica's gradient rounded")]
RULES += [(replace(INT8, compression="1bit"), "1-bit Adam's rule")]
RULES += [(replace(INT8, compression="1bit-lamb"), "1-bit LAMB's rule")]
RULES += [(TOP_K, "top-k's rule, 0.1 of each replica's elements")]
KIN = [RULES[n] for n in (0, 3, 9, 11)]  # local SGD with an outer step, PipeDream-2BW, 1-bit LAMB, pairs are quick


@pytest.mark.parametrize(("parallelism", "said"), [slow(rule) if rule in KIN else rule for rule in RULES])
@pytest.mark.usefixtures("verified_in_pool")
def test_a_plan_equals_its_rule_and_says_so(parallelism: Parallelism, said: str) -> None:
    plan = planned(parallelism)
    found = plan.verify()
    assert found.passed and f"equal to one process that follows {said}" in str(found)
    assert ("averaging every 2 steps in place of 8" in found.note) == (parallelism.local_steps == 8)
    assert ("Compressed: " if parallelism.compression else "Asynchronous: ") in plan.report(verbose=True)


@pytest.mark.usefixtures("verified_in_pool")
def test_without_the_module_it_says_what_it_compares(tmp_path: Path) -> None:
    kinds = [(LOCAL, "gradients summed in each"), (STALE, "flushed after each step")]
    kinds += [(SERVERS, "the same program on one rank")]
    kinds += [(replace(SERVERS, staleness=None, backups=1), "no one device takes its replicas' steps")]
    for n, (parallelism, said) in enumerate((*kinds, (LOW_RANK, "compression is compared where the module is there"))):
        planned(parallelism).export(tmp_path / str(n))
        found = autoplan.load(tmp_path / str(n)).verify()
        assert found.passed and said in found.note and "one device" in str(found).splitlines()[0]


def test_a_plan_and_its_program_say_who_serves_and_how_old_the_weights_are(tmp_path: Path) -> None:
    planned(SERVERS).export(tmp_path / "stale")
    text = (tmp_path / "stale" / "program.py").read_text()
    assert "Parameter servers are ranks 0 (" in text and "Gradients are of the weights 1 update before" in text
    synchronous = planned(replace(SERVERS, staleness=None))
    assert "Servers: 2 parameter servers have the weights, on 2 workers" in synchronous.report(verbose=True)
    assert synchronous.predicted.peak_bytes[0].optimizer < planned(LOCAL).predicted.peak_bytes[0].optimizer


def test_an_outer_update_without_momentum_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OuterSteps, "round", OuterSteps.average)
    with pytest.raises(VerificationError, match="NOT equal to one process that follows DiLoCo's rule"):
        planned(OUTER).verify()


def test_a_program_that_forgets_its_errors_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: LowRankSums) -> None:
        for error in self.errors:
            error.zero_()
        sum_up(self)

    sum_up = LowRankSums.sum_up
    monkeypatch.setattr(LowRankSums, "sum_up", forgets)
    with pytest.raises(VerificationError, match="NOT equal to one process that follows PowerSGD's rule"):
        planned(LOW_RANK).verify()


def test_a_program_with_one_version_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the older version changed with the newest, verification would see it."""
    monkeypatch.setattr(StashedVersions, "lie", lambda self, memory: None)
    with pytest.raises(VerificationError, match="NOT equal to one process that follows PipeDream-2BW's rule"):
        planned(STALE).verify()
