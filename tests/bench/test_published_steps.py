"""Published rows are asked of the search with their pins and traits, and counted as what they are."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autoplan.cluster.interval import interval_of
from cost_models.hardware import Topology, device_names, load_device
from tests.bench.closed_form.case import LAYER, STEP, Case
from tests.bench.closed_form.fitting.steps import fit
from tests.bench.closed_form.predict import predicted_s
from tests.bench.closed_form.tables.megatron import gpt
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.published_steps.answered import Answered
from tests.bench.published_steps.by_device import by_device
from tests.bench.published_steps.document import printed
from tests.bench.published_steps.fitting import by_plan, straight
from tests.bench.published_steps.intervals import intervals
from tests.bench.published_steps.job import NotPlannable, cluster_of, job_of, job_on, named
from tests.bench.published_steps.price import Planned, plan_all
from tests.bench.published_steps.rows import FULLEST, LAST, Published

ROOT = Path(__file__).resolve().parents[2]
GPT = Transformer(64, 2, 4, 32, 256, dropout=True)
LLAMA = Transformer(64, 2, 4, 32, 256, gated=True, bias=False, norm="rms", positions="rotary", tied=False)
DEVICE, LINKS = load_device("a100-sxm-80gb")
ONE_NODE = cluster_of(Topology(DEVICE, LINKS.levels(1, 8)), relays=True)
MEGATRON = Recipe(tensor=2, data=4, micro_batch=1, microbatches=2, recompute="full", compiled=True,
                  precision="fp16-mixed", fused_attention=False)  # fmt: skip


def test_a_closed_forms_shape_has_a_name() -> None:
    assert named(GPT)[0] == "hf:gpt2" and "n_embd=64" in named(GPT)[1]
    assert named(LLAMA)[0] == "hf:llama"
    assert named(replace(LLAMA, experts=4, top_k=2))[0] == "hf:mixtral"
    assert named(replace(GPT, kv_heads=2))[0] == "hf:starcoder2"
    with pytest.raises(NotPlannable, match="no named model has rms norms"):
        named(replace(LLAMA, gated=False))


def test_a_recipe_is_pinned_whole() -> None:
    job = job_on(GPT, MEGATRON, ONE_NODE)
    assert job.pins.pinned() == {
        "dp": 4, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "zero": 0, "micro_batch": 1, "recompute": "full",
        "sequence_parallel": False, "offload": "none",
    }  # fmt: skip
    assert job_on(GPT, replace(MEGATRON, overlaps_tensor=True), ONE_NODE).pins == replace(job.pins, tp_overlap=2)
    assert job.training.reduce_dtype == "bf16" and job.training.compile
    assert job.traced.batch == 8 and job.traced.apart and not job.traced.whole
    assert "attn_implementation=eager" in job.traced.settings
    with pytest.raises(NotPlannable, match="8 bit"):
        job_on(GPT, replace(MEGATRON, matmul="float8"), ONE_NODE)


def test_a_cluster_keeps_the_links_of_the_rows_machine() -> None:
    shared = Topology(DEVICE, replace(LINKS, nics_per_node=4).levels(4, 8))
    made = cluster_of(shared, relays=False)
    assert made.topology().levels == shared.levels and not made.topology().relays


@pytest.mark.slow
def test_the_traits_of_a_row_change_its_price() -> None:
    """Scores in memory cost more than a fused kernel, and a dropout of its own more again; a kernel that leaves nothing
    out more than one that skips the masked half."""
    job = job_on(replace(GPT, sequence=1024, hidden=512), replace(MEGATRON, fused_attention=True), ONE_NODE)
    written = (*job.traced.settings, "attn_implementation=eager")
    traits = [job.traced, replace(job.traced, whole=True), replace(job.traced, settings=written)]
    traits.append(replace(traits[-1], apart=True))
    seconds = [plan_all(traced, [job])[0].step_s for traced in traits]
    assert 0 < seconds[0] < seconds[1] and seconds[0] < seconds[2] < seconds[3]


def test_a_lean_loss_takes_no_float32_logits() -> None:
    """Of a vocabulary that outweighs the layers: logits and their gradient in 2 bytes against a log-softmax and two
    gradients in 4."""
    wide = replace(GPT, vocabulary=50304, sequence=256)
    recipe = replace(MEGATRON, tensor=1, data=8, microbatches=1, recompute="none", compiled=False)
    plain, lean = (job_on(wide, replace(recipe, loss=loss), ONE_NODE) for loss in ("eager", "fused"))
    assert lean.traced.lean and not plain.traced.lean
    held, less = (plan_all(job.traced, [job])[0] for job in (plain, lean))
    logits = 256 * 50304
    assert held.peak_bytes - less.peak_bytes == pytest.approx(8 * logits, rel=0.02)
    assert less.step_s < held.step_s


def test_rows_that_ran_out_of_memory_are_counted_apart() -> None:
    row = Published("out of memory", 1, "one", "7B", "h100-sxm", job_on(GPT, MEGATRON, ONE_NODE), math.nan, math.nan)
    ran = replace(row, family="family", row=2, label="two", measured=10.0, closed=10.0)
    asked = [Answered(row, Planned("tp=2", 9.0, 4, 3, True)), Answered(ran, Planned("tp=2", 9.0, 4, 3, False))]
    assert "Of 1 rows that ran 1 don't fit; of 1 that ran out of memory 1 fit." in printed(asked)
    assert "| out of memory |" not in printed(asked)
    mended = [replace(one, plan=replace(one.plan, fits=not one.plan.fits)) for one in asked]
    assert "Of 1 rows that ran 0 don't fit; of 1 that ran out of memory 0 fit." in printed(mended)


def test_rows_are_counted_by_family_and_half() -> None:
    row = Published("family", 1, "one", "7B", "h100-sxm", job_on(GPT, MEGATRON, ONE_NODE), 10.0, 11.0)
    plan = Planned("tp=2", 9.0, 4, 3, True)
    rows = [Answered(row, plan), Answered(replace(row, row=2, fitted=True), replace(plan, step_s=12.0, fits=False))]
    missing = Answered(replace(row, row=3, asked="why not"), Planned(reason="why not"))
    text = printed([*rows, missing])
    assert "| family | h100-sxm | 1 + 1 | 10.0% | 10.0% | 10.0% | -10.0% | 20.0% | – | 10.0% | 10.0% | 1 of 2 |" in text
    assert "1 rows not planned: why not" in text
    bytes_ = [Answered(replace(row, rank=rank, measured=3.0), plan).point.predicted for rank in (LAST, FULLEST)]
    assert bytes_ == [3.0, 4.0]


def test_a_prediction_has_an_interval() -> None:
    found = interval_of(ONE_NODE, 10.0)
    assert found.low_s < 10.0 < found.high_s and found.is_validated
    assert found.holds(10.0) and not found.holds(100.0)


def test_an_interval_is_that_of_rows_on_which_nothing_was_fitted() -> None:
    row = Published("family", 1, "one", "7B", "h100-sxm", "", 10.0, 10.0)
    rows = [Answered(replace(row, row=i, measured=9.0 + 0.1 * i), Planned("tp=2", 10.0)) for i in range(1, 10)]
    fitted = Answered(replace(row, fitted=True, measured=50.0), Planned("tp=2", 10.0))
    other = Answered(replace(row, family="sc21_zero3", measured=50.0), Planned("dp=2", 10.0))
    assert intervals([*rows, fitted, other]) == {"h100-sxm": (0.92, 1.0, 9)}
    assert by_device([*rows, fitted, other]).splitlines()[2:] == ["| h100-sxm | 9 | 5.3% | 9.9% | 0.92 to 1.00 |"]
    assert intervals(rows[:4]) == {}
    assert intervals([*rows[:4], fitted])["h100-sxm"][2] == 5


def test_profiles_have_the_intervals_of_the_page() -> None:
    text = (ROOT / "docs" / "appendix" / "accuracy.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\S+) \| (\d+) \| (\d\.\d\d) \| (\d\.\d\d) \|$", text, re.MULTILINE)
    page = {device: (float(low), float(high)) for device, _, low, high in lines}
    told = {name: share for name in device_names() if (share := load_device(name)[0].accuracy) is not None}
    assert page == told
    assert len(page) >= 4


def test_traits_of_the_data_axis_take_their_time_away() -> None:
    """Copies of what is gathered, and sums in a pass of their own."""
    job = job_on(LLAMA, replace(MEGATRON, tensor=1, data=8, zero=3, fused_attention=True), ONE_NODE)
    ours, flat, adds = plan_all(job.traced, [job, replace(job, flat=True), replace(job, adds=True)])
    assert 0 < max(flat.step_s, adds.step_s) < ours.step_s and flat.peak_bytes == adds.peak_bytes == ours.peak_bytes


def test_a_recipe_says_the_traits_of_its_row() -> None:
    """Of Megatron-LM until 2022, of its pipelines, of FSDP1 and of torchtitan."""
    old = job_on(GPT, replace(MEGATRON, overlaps_gradients=False, overlaps_messages=False), ONE_NODE)
    assert (old.halves, old.behind, old.bare, old.parts, old.waits) == (True, True, True, False, False)
    piped = replace(MEGATRON, data=2, pipeline=2, hides_input_gradients=True, overlaps_messages=False)
    job = job_on(GPT, piped, ONE_NODE)
    assert (job.bare, job.parts, job.waits) == (False, True, True)
    split = job_on(GPT, replace(piped, sequence_parallel=True, recompute="none"), ONE_NODE)
    assert (split.parts, split.gathers, split.pins.recompute) == (False, True, "selective")
    titan = job_on(LLAMA, Recipe(tensor=2, data=4, recompute="operators", overlaps_tensor=True), ONE_NODE)
    assert (titan.seconds, titan.copied, titan.posts) == (True, True, False)
    assert job_on(LLAMA, Recipe(data=8, zero=3, prefetches_backward=False), ONE_NODE).posts


def test_parameters_that_are_gathered_singly_stand_whole_one_by_one() -> None:
    """Of a GPT's layer a third is its largest matrix: of two layers whole and one's gradients in 4 bytes stay two such
    matrices and one in 2."""
    recipe = Recipe(data=8, zero=3, gathers_a_layer=12, precision="fp16-mixed", recompute="full", micro_batch=1)
    job = job_on(replace(GPT, hidden=1024, heads=8, layers=4), recipe, ONE_NODE)
    assert job.singly
    ours, theirs = plan_all(job.traced, [replace(job, singly=False), job])
    layer = 2 * 12 * 1024**2
    assert layer < ours.peak_bytes - theirs.peak_bytes <= 3.01 * layer  # less where another moment is the fullest then
    assert theirs.step_s == ours.step_s


def test_what_follows_the_backward_or_is_waited_for_takes_longer() -> None:
    """A gradients' sum in the open, inputs' gradients summed in the open, and gathers of the backward."""
    recipe = replace(MEGATRON, fused_attention=True, hides_input_gradients=True)
    job = job_on(replace(GPT, sequence=1024, hidden=512), recipe, ONE_NODE)
    ours, behind, bare = plan_all(job.traced, [job, replace(job, behind=True), replace(job, bare=True)])
    assert min(behind.step_s, bare.step_s) > ours.step_s
    sharded = job_on(LLAMA, replace(recipe, tensor=1, data=8, zero=3), ONE_NODE)
    ahead, posts = plan_all(sharded.traced, [sharded, replace(sharded, posts=True)])
    assert posts.step_s > ahead.step_s


def test_messages_in_parts_are_shorter_and_waited_for_longer() -> None:
    """Between nodes, where each part goes by a card of its own."""
    nodes = cluster_of(Topology(DEVICE, LINKS.levels(2, 8)), relays=True)
    recipe = replace(MEGATRON, tensor=8, data=1, pipeline=2, micro_batch=4, fused_attention=True,
                     hides_input_gradients=True)  # fmt: skip
    job = job_on(replace(GPT, heads=8, sequence=1024, hidden=2048), recipe, nodes)
    ways = [replace(job, parts=parts, waits=waits) for parts, waits in ((False, False), (False, True), (True, True))]
    ours, whole, parts = (plan.step_s for plan in plan_all(job.traced, ways))
    assert parts < whole and ours < whole


def test_every_second_product_runs_again_and_keeps_less() -> None:
    """More seconds and fewer bytes than our selective recomputation, which runs no product again."""
    model = replace(LLAMA, sequence=1024, hidden=512, layers=8)
    job = job_on(model, Recipe(data=8, micro_batch=4, recompute="operators"), ONE_NODE)
    ours, theirs = plan_all(job.traced, [replace(job, seconds=False), job])
    assert theirs.step_s > ours.step_s and theirs.peak_bytes < ours.peak_bytes


def test_bytes_beside_tensors_are_counted_to_a_reservation() -> None:
    row = Published("family", 1, "one", "7B", "h100-sxm", "", 10.0, 11.0, FULLEST, beside=5.0)
    assert Answered(row, Planned("dp=8", 9.0, 4, 3, True)).point.predicted == 9.0


def test_figures_are_fitted_to_straight_lines_through_plans() -> None:
    """Seconds that go with a power of a figure are met exactly near it, and their figure is found again."""
    topology, model, recipe = Topology(DEVICE, LINKS.levels(1, 8)), gpt(1024, 4, 8, 1024, 32000), Recipe(data=8)
    begin = DEVICE.matmul_sustained
    cases = [Case("one", row, "", "", STEP, model, recipe, topology, row * (1.05 * begin) ** -0.5) for row in (1, 2, 3)]

    def seconds(case: Case) -> float:
        return case.row * case.topology.device.matmul_sustained**-0.5

    lines = straight(cases, ("matmul_sustained",), seconds)
    assert lines(cases[0]) == pytest.approx(seconds(cases[0]))
    found = dict(fit(cases, ("matmul_sustained",), seconds=lines).values)
    assert found["matmul_sustained"] == pytest.approx(1.05 * begin, rel=1e-3)


def test_a_case_that_parallelize_isnt_asked_has_the_closed_forms_seconds() -> None:
    topology = Topology(DEVICE, LINKS.levels(1, 8))
    step = Case("one", 1, "", "", STEP, GPT, MEGATRON, topology, 1.0)
    layer, prices = replace(step, what=LAYER), by_plan({})
    assert prices(layer) == predicted_s(layer)
    assert prices(step) == plan_all(job_of(step).traced, [job_of(step)])[0].step_s
