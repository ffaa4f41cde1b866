"""Where nothing fits: what is told, and remedies that are plans."""

from __future__ import annotations

import ast
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import autoplan.rules.builtin  # noqa: F401  registers the rules
from autoplan.cluster import ClusterSpec
from autoplan.cluster.spec import MOST_DEVICES
from autoplan.errors import DoesNotFitError, ParallelismError
from autoplan.ir.graph import Model
from autoplan.models.inputs import hf_inputs
from autoplan.options import Parallelism, Training
from autoplan.search.budget import budget_of
from autoplan.search.entry import search
from autoplan.search.explain.does_not_fit import leanest, least_on_any_axes
from autoplan.search.explain.remedies import Remedy, bisected, most_nodes, on_nodes, remedies
from autoplan.search.state import begin, candidates
from autoplan.trace.pipeline import trace
from autoplan.trace.rescale import rescale
from cost_models.hardware import PROFILES
from tests.support.hand_made import llama, mlp, sharing
from tests.support.planning import alone
from tests.support.sampling import sampled, slow

MODEL = llama(batch=4, seq=64, hidden=128, ffn=512, vocab=1024, layers=3)
LONG = llama(batch=2, seq=1024, hidden=64, ffn=192, vocab=2048, layers=3)  # its activations are what it needs
CLUSTER = ClusterSpec.parse("1x2 h100-sxm")


def under(wall: float, cluster: ClusterSpec = CLUSTER) -> ClusterSpec:
    return replace(cluster, memory_bytes=round(wall))


def needed(pinned: Parallelism, cluster: ClusterSpec = CLUSTER, model: Model = MODEL) -> int:
    """The least bytes on the fullest device of any plan."""
    found = leanest(begin(model, cluster, Training(), pinned), pinned)
    return max(memory.total for memory in found.memory)


def error(pinned: Parallelism, cluster: ClusterSpec, model: Model = MODEL) -> DoesNotFitError:
    with pytest.raises(DoesNotFitError) as caught:
        search(model, cluster, Training(), pinned)
    return caught.value


def found(pinned: Parallelism, cluster: ClusterSpec, model: Model = MODEL) -> list[Remedy]:
    return remedies(begin(model, cluster, Training(), pinned), pinned)


@pytest.mark.parametrize("pinned", [Parallelism(dp=1, tp=2), slow(Parallelism())], ids=["tensor", "free"])
def test_the_least_that_is_told_is_where_plans_begin_to_fit(pinned: Parallelism) -> None:
    least = needed(pinned)
    with alone():
        chosen, _, _ = search(MODEL, under(least), Training(), pinned)
    assert max(m.total for m in chosen.predicted.peak_bytes) <= least
    said = error(pinned, under(least * 0.99))
    assert f"needs {least / 1e6:.1f} MB on a device in the leanest plan found" in said.cause
    assert "of which" in said.cause


@pytest.mark.slow
def test_several_remedies_each_a_plan_the_quickest_first_and_another_task_last() -> None:
    cluster = under(needed(Parallelism(), model=LONG) * 0.97)
    given = found(Parallelism(), cluster, LONG)
    assert len(given) > 2 and given == sorted(given, key=lambda r: (r.other, r.unit_s))
    texts = [remedy.text for remedy in given]
    assert any("nodes" in text for text in texts) and any("offload=" in text for text in texts)
    assert texts[-1].startswith("a sequence of ")
    for remedy in given:
        s = remedy.found.candidate
        model = rescale(LONG, seq=int(remedy.text.split()[-1])) if remedy.other else LONG
        nodes = cluster if remedy.other else cluster.with_nodes(int(remedy.text.split()[0]))
        pinned = Parallelism(offload=None if s.offload == "none" or remedy.other else s.offload)  # as its text says
        with alone():
            chosen, _, _ = search(model, nodes, Training(), pinned, effort="full" if remedy.other else "fast")
        assert chosen.mesh.devices == s.pp * s.dp * s.tp
        assert chosen.predicted.step_time_s <= remedy.found.step_s * (1 + 1e-9)
        assert max(m.total for m in remedy.found.memory) <= nodes.usable_bytes


@pytest.mark.parametrize(
    ("pinned", "names"),
    [
        (Parallelism(dp=2, tp=1, pp=1, zero=0, micro_batch=1), ["zero"]),
        (Parallelism(dp=1, tp=2, pp=1, recompute="none", micro_batch=4), ["micro_batch", "recompute"]),
    ],
)
def test_each_pinned_field_that_stands_in_the_way_is_named(pinned: Parallelism, names: list[str]) -> None:
    least, without = needed(pinned), [needed(replace(pinned, **{name: None})) for name in names]
    assert max(without) < least
    said = error(pinned, under((least + max(without)) / 2)).remedy
    for name in names:
        assert f"in place of {name}={getattr(pinned, name)!r} (" in said


def test_pinned_sizes_leave_no_more_nodes_but_with_other_sizes() -> None:
    pinned = Parallelism(dp=1, tp=2, pp=1)
    texts = [remedy.text for remedy in found(pinned, under(needed(pinned) * 0.8))]
    assert any("nodes with " in text and "in place of" in text for text in texts)


def test_where_the_hosts_memory_lacks_it_says_so(tmp_path: Path) -> None:
    text = (PROFILES / "h100-sxm.toml").read_text()
    path = tmp_path / "small.toml"
    path.write_text(text.replace('memory = { value = 250, unit = "GB"', 'memory = { value = 0.5, unit = "MB"'))
    said = error(Parallelism(offload="optimizer"), ClusterSpec(1, 2, str(path)))
    assert "MB of the host's memory for a device" in said.cause and "has 0.5 MB for each" in said.cause


def test_where_nothing_near_fits_it_says_by_how_much() -> None:
    said = error(Parallelism(), under(1000))
    assert said.remedy.startswith("Nothing near fits") and "offers 0.0 MB" in said.cause


@pytest.mark.parametrize("least", [4, 5, 7, 8])
def test_bisection_finds_the_least_that_holds(least: int) -> None:
    asked: list[int] = []
    assert bisected(3, 8, lambda n: asked.append(n) or n >= least) == least  # type: ignore[func-returns-value]
    assert len(asked) <= 3


def test_memory_is_not_blamed_where_it_suffices() -> None:
    """One microbatch of all rows leaves no data parallelism, and so a tensor axis that nobody asked for."""
    pinned = Parallelism(pp=2, micro_batch=8, pipeline_schedule="interleaved", virtual_stages=2)
    cluster, small = ClusterSpec.parse("1x4 cpu"), mlp(batch=8, layers=4)
    with pytest.raises(ParallelismError) as caught:
        search(small, cluster, Training(), pinned)
    assert "micro_batch=8" in caught.value.value and "(dp=1 tp=2 pp=2): fewer devices do the same" in caught.value.cause
    assert caught.value.remedy.startswith("pin tp=2 to have it split the weights, or micro_batch=")
    with alone():
        assert search(small, cluster, Training(), replace(pinned, tp=2))[0].parallelism.tp == 2


@pytest.mark.parametrize("memory", [slow(90_000_000), 400_000_000])
def test_parameters_that_zero_would_hold_twice_are_told_whatever_fits(memory: int) -> None:
    """All layers read the first one's parameters, so that both stages of each rank do."""
    model = sharing(llama(layers=6, batch=16, seq=256, hidden=512, ffn=1536), dict.fromkeys(range(2, 7), 1))
    spec = replace(ClusterSpec.parse("1x4 h100-sxm"), memory_bytes=memory)
    with pytest.raises(ParallelismError, match=r"ZeRO would hold as two.*pin virtual_stages=1, or zero=0"):
        search(model, spec, Training(precision="bf16-mixed"), Parallelism(pp=2, virtual_stages=2, zero=1))


def mixture() -> Model:
    """A small mixture of experts as transformers has it."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_local_experts": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "pad_token_id": 0}
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads))
    return trace(model, hf_inputs(model, 2, 64), training=True)


def pinned_by(remedy: Remedy, pinned: Parallelism) -> Parallelism:
    """What a user pins who follows a remedy."""
    fields = dict(re.findall(r"(\w+)=('\w+'|\d+|True|False|None)", remedy.text.split(" in place of ")[0]))
    return replace(pinned, **{name: ast.literal_eval(value) for name, value in fields.items()})


FREE, NODES = Parallelism(), ClusterSpec.parse("2x2 h100-sxm")
MODELS = {"dense": lambda: MODEL, "long": lambda: LONG, "mixture": mixture}
JOBS = [
    ("dense", FREE, 0.6, CLUSTER), ("long", FREE, 0.97, CLUSTER), ("mixture", FREE, 0.7, CLUSTER),
    ("dense", Parallelism(zero=0), 0.95, CLUSTER), ("dense", FREE, 0.9, NODES), ("long", FREE, 0.8, NODES),
    ("mixture", FREE, 0.9, NODES), ("mixture", FREE, 0.75, CLUSTER), ("long", FREE, 0.6, CLUSTER),
    ("dense", FREE, 0.3, CLUSTER), ("dense", Parallelism(tp=2), 0.8, NODES), ("long", Parallelism(tp=2), 0.8, CLUSTER),
    ("mixture", Parallelism(tp=2), 0.8, CLUSTER), ("dense", Parallelism(pp=2), 0.8, NODES),
    ("mixture", Parallelism(ep=2), 0.8, CLUSTER), ("long", Parallelism(cp=2), 0.9, CLUSTER),
    ("long", Parallelism(recompute="none"), 0.9, CLUSTER), ("mixture", Parallelism(zero=3), 0.8, NODES),
    ("long", Parallelism(micro_batch=2), 0.9, CLUSTER), ("mixture", Parallelism(dp=2, zero=1), 0.9, NODES),
]  # fmt: skip
"""Twenty that don't fit: (model, what is pinned, of the least that is needed how much there is, cluster). Each model
lacks something else; of the long one the test of several remedies plans those that are found quickly."""
PROMISED = list(itertools.product(range(len(JOBS)), ("full", "fast")))


@pytest.mark.parametrize(("number", "effort"), sampled(PROMISED, [(0, "fast")]))
def test_what_a_remedy_promises_is_what_planning_it_gives(number: int, effort: str) -> None:
    name, pinned, share, given = JOBS[number]
    model, budget = MODELS[name](), budget_of(effort)
    cluster = under(needed(pinned, given, model) * share, given)
    promised = remedies(begin(model, cluster, Training(), pinned, budget=budget), pinned)
    assert promised
    for one in promised:
        rows = re.fullmatch(r"a batch of (\d+) rows", one.text)
        tokens = re.fullmatch(r"a sequence of (\d+)", one.text)
        own = rescale(model, batch=int(rows[1])) if rows else rescale(model, seq=int(tokens[1])) if tokens else model
        there = cluster.with_nodes(one.nodes)
        with alone():
            chosen, _, _ = search(own, there, Training(), pinned_by(one, pinned), effort=effort)
        assert chosen.predicted.step_time_s == pytest.approx(one.found.step_s, rel=1e-6), one.text
        assert max(memory.total for memory in chosen.predicted.peak_bytes) <= there.usable_bytes, one.text


@pytest.mark.slow
def test_where_no_remedy_is_named_there_is_none() -> None:
    """Two rows occupy sixteen devices at most, and half of what the mixture needs on two is too little there too."""
    model, free = mixture(), Parallelism()
    work = begin(model, under(needed(free, CLUSTER, model) * 0.5, CLUSTER), Training(), free)
    assert not remedies(work, free)
    for nodes, offload in itertools.product((1, 2, 4, 8), ("none", "optimizer", "parameters")):
        there, pinned = on_nodes(work, nodes), replace(free, offload=offload)
        plans = (there.evaluate(one, math.inf, math.inf) for one in candidates(there.limits, pinned))
        least = min(max(memory.total for memory in plan.memory) for plan in plans if plan is not None)
        assert least > work.cluster.usable_bytes, (nodes, offload)


def test_the_least_of_a_mixture_has_its_experts_apart() -> None:
    """It was told without an axis of theirs. ZeRO-3 gathers all experts of a layer, such an axis a part of them."""
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 2048, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 16, "num_experts_per_tok": 2}
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads, use_cache=False))
    traced = trace(model, hf_inputs(model, 16, 16), training=True)
    cluster, free = ClusterSpec(8, 2, "h100-sxm"), Parallelism()  # no tensor axis leaves a node
    least = least_on_any_axes(begin(traced, cluster, Training(), free), free)
    total = max(memory.total for memory in least.memory)
    assert total <= needed(Parallelism(ep=16, tp=1), cluster, traced)
    assert least.candidate.sizes["ep"] > 1 and total < needed(free, cluster, traced)


def test_more_nodes_are_tried_as_far_as_a_cluster_may_have_them() -> None:
    """64 times 16,384 devices are more than any cluster is taken to have: that broke off what was to be told."""
    work = begin(MODEL, CLUSTER, Training(), Parallelism())
    assert most_nodes(work) == 64 * CLUSTER.nodes
    large = replace(work, cluster=CLUSTER.with_nodes(8192))
    assert large.cluster.with_nodes(most_nodes(large)).devices == MOST_DEVICES
