"""What a report prints of a parallelism is read back, and what isn't understood is named."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoplan.errors import AutoplanError, ParallelismError
from autoplan.option_values import GOSSIP, OFFLOADS, SCHEDULES, TENSOR_SYSTEMS
from autoplan.options import Parallelism
from autoplan.report.words import parallelism_parts, parallelism_text
from autoplan.search.space.one_line import FIELDS, SCHEDULE_WORDS
from autoplan.search.space.systems import SYSTEMS, read


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dp=2 tp=2", Parallelism(dp=2, tp=2)),
        ("dp=2,tp=2", Parallelism(dp=2, tp=2)),
        (" DP = 2; TP = 2 ", Parallelism(dp=2, tp=2)),
        ("zero=3", Parallelism(zero=3)),
        ("pp=2 1f1b", Parallelism(pp=2, pipeline_schedule="1f1b")),
        ("pipeline_schedule=1F1B", Parallelism(pipeline_schedule="1f1b")),
        ("tp8 pp2", Parallelism(tp=8, pp=2)),
        ("micro-batch=4", Parallelism(micro_batch=4)),
        ("dp=4 fsdp", Parallelism(dp=4, zero=3)),
        ("tensor=2x4", Parallelism(tensor=(2, 4))),
        ("one device", Parallelism(dp=1, tp=1, pp=1)),
        ("dp=2 pp=2, 1F1B, 4 microbatches of 2", Parallelism(dp=2, pp=2, pipeline_schedule="1f1b", micro_batch=2)),
        ("tp=4 (2x2), 2d tensor parallel", Parallelism(tp=4, tensor=(2, 2), tensor_system="2d")),
        ("pp=2, recompute 12 of 40 blocks (3 selectively)", Parallelism(pp=2)),
        ("pp=2, recompute 40 of 40 blocks", Parallelism(pp=2, recompute="full")),
        ("pp=2, recompute 40 of 40 blocks (all selectively)", Parallelism(pp=2, recompute="selective")),
        ("dp=8, ZeRO-3, 2 replicas", Parallelism(dp=8, zero=3, dp_replicate=2)),
        ("dp=4, replicas averaged every 4 steps", Parallelism(dp=4, local_steps=4)),
        ("dp=4, PowerSGD of rank 2", Parallelism(dp=4, compression="powersgd", compression_rank=2)),
        ("dp=4, neighbours on a ring graph averaged every step", Parallelism(dp=4, gossip="ring")),
        ("dp=4, top-k of 0.05", Parallelism(dp=4, compression="topk", compression_rate=0.05)),
        ("dp=4 int8 gradients compression-rate=0.5", Parallelism(dp=4, compression="int8", compression_rate=0.5)),
        ("dp=4, 2 parameter servers, weights 3 updates old", Parallelism(dp=4, servers=2, staleness=3)),
        ("tp=4, tensor collectives in 2 chunks", Parallelism(tp=4, tp_overlap=2)),
        ("tp=4, tensor collectives in chunks", Parallelism(tp=4, tp_overlap="auto")),
        ("tp=4,tp_overlap=auto", Parallelism(tp=4, tp_overlap="auto")),
        ("ep=4, tokens travel in 2 chunks", Parallelism(ep=4, ep_overlap=2)),
        ("ep=4, tokens travel under shared experts", Parallelism(ep=4, ep_overlap="shared")),
        ("ep=4,ep_overlap=auto", Parallelism(ep=4, ep_overlap="auto")),
        ("dp=4 powersgd", Parallelism(dp=4, compression="powersgd")),
        ("offload activations, activations of 2 of 4 blocks on the host", Parallelism(offload="activations")),
    ],
)  # fmt: skip
def test_a_text_pins_fields(text: str, wanted: Parallelism) -> None:
    assert read(text) == wanted


@pytest.mark.parametrize(
    ("text", "name"),
    [("DDP", "ddp"), ("ZeRO3", "zero3"), ("zero-3", "zero3"), ("3d hybrid", "3d-hybrid"), ("Auto", "auto")],
)
def test_a_system_is_found_however_it_is_written(text: str, name: str) -> None:
    assert read(text) == name and name in SYSTEMS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp=2 sideways", "parallelism 'dp=2 sideways': 'sideways' says nothing of a parallelism"),
        ("hybrid", "parallelism='hybrid': no such system. did you mean 3d-hybrid?"),
        ("dp=4 dp=2", "dp is both 4 and 2. give each field once."),
        ("dp=4, ZeRO-1, zero=2", "zero is both 1 and 2"),
        ("dp=two", "dp=two: parallelism takes a whole number there"),
        ("ahead=foo", "ahead='foo': it is a number of steps of at least 0, or 'unbounded'"),
        ("tp_overlap=1.5", "tp_overlap='1.5'"),
        ("fsdp=4", "fsdp=4: parallelism has no 'fsdp'. write zero=3."),
        ("tensor_parallel_size=4", "write tp=4."),
        ("4 microbatches", "4 microbatches: the batch gives their number. pin micro_batch=N"),
        ("tensor=2.5", "tensor=2.5: it is no product of sizes"),
        ("zero=7", "zero=7: no such choice"),
        ("  ", "it says nothing"),
        ("dp=2tp=2", "dp=2tp=2"),
    ],
)
def test_what_says_nothing_is_named(text: str, said: str) -> None:
    with pytest.raises(AutoplanError) as caught:
        read(text)
    assert said in str(caught.value)


sizes = st.integers(2, 64)
choices = st.builds(
    Parallelism, dp=sizes, tp=sizes, pp=sizes, zero=st.integers(1, 3), micro_batch=st.integers(1, 64),
    pipeline_schedule=st.sampled_from(SCHEDULES), virtual_stages=sizes,
    recompute=st.sampled_from(("selective", "full")), sequence_parallel=st.just(True),
    offload=st.sampled_from(OFFLOADS), tensor_system=st.sampled_from(TENSOR_SYSTEMS), local_steps=sizes,
    dp_replicate=sizes, tp_overlap=sizes, ep_overlap=st.one_of(sizes, st.sampled_from(("shared", "auto"))),
)  # fmt: skip


optional = st.sampled_from([field.name for field in fields(Parallelism) if field.name not in ("dp", "tensor")])


@given(full=choices, left=st.sets(optional))
def test_what_a_report_prints_is_read_back(full: Parallelism, left: set[str]) -> None:
    """The table's line of a parallelism, and a plan's headline but for how many blocks are recomputed."""
    given = replace(full, **dict.fromkeys(left - {"pp"}), **({"pp": 1} if "pp" in left else {}))
    of_a_pipeline = ("pp", "pipeline_schedule", "virtual_stages")
    pipelined = {} if given.pp != 1 else dict.fromkeys(of_a_pipeline)
    given = replace(given, **pipelined)  # type: ignore[arg-type]
    given = given if given.pp else replace(given, pipeline_schedule=None, virtual_stages=None)
    assert read(parallelism_text(given)) == given
    if given.micro_batch is not None:
        assert read(", ".join(filter(None, parallelism_parts(given, 8)))) == replace(given, recompute=None)


@pytest.mark.parametrize(
    "given",
    [
        *(Parallelism(dp=2, compression="powersgd", compression_rank=rank) for rank in (None, 2)),
        *(Parallelism(dp=2, compression="topk", compression_rate=rate) for rate in (None, 1e-5, 0.25, 1.0)),
        *(Parallelism(dp=2, compression=kind) for kind in ("int8", "fp8", "1bit", "1bit-lamb")),
        Parallelism(dp=4, compression="topk", compression_rate=0.25, compression_within=2),
        Parallelism(dp=4, compression="int8", compression_within=2),
        *(Parallelism(dp=4, all_reduce=rule) for rule in ("ring", "tree", "hierarchical", "ring<64KiB<hierarchical")),
        Parallelism(dp=4, servers=2, backups=1), Parallelism(dp=4, servers=2, backups=2),
        Parallelism(dp=4, servers=2, ahead=1), Parallelism(dp=4, servers=2, ahead=3),
        Parallelism(dp=4, servers=2, ahead="unbounded"),
        *(Parallelism(dp=2, servers=n, staleness=old) for n in (1, 2) for old in (None, 1, 2)),
        *(Parallelism(dp=2, gossip=graph, local_steps=k) for graph in GOSSIP for k in (None, 4)),
    ],
    ids=parallelism_text,
)  # fmt: skip
def test_steps_of_another_rule_are_read_back(given: Parallelism) -> None:
    assert read(parallelism_text(given)) == given


def test_factors_of_the_tensor_axis_are_read_back() -> None:
    given = Parallelism(dp=2, tp=8, tensor=(2, 4), tensor_system="2d")
    assert read(parallelism_text(given)) == given


def test_every_field_and_schedule_has_words() -> None:
    assert set(FIELDS) == {field.name for field in fields(Parallelism)} and set(SCHEDULE_WORDS) == set(SCHEDULES)


@pytest.mark.parametrize("text", ["servers=2 ahead=foo", "servers=2,ahead=-1", "ahead=2.5"])
def test_how_far_workers_may_be_apart_is_a_number_or_unbounded(text: str) -> None:
    with pytest.raises(ParallelismError, match=r"of at least 0, or 'unbounded'\. give for example 3 or 'unbounded'"):
        read(text)
