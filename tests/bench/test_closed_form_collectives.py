"""Published collectives: rows as samples, errors by device and kind, and figures fitted back from times."""

from __future__ import annotations

import csv
import dataclasses
import io

import numpy as np
import pytest

from cost_models.collective import COLLECTIVES
from cost_models.hardware import Link, Protocol, Switch, fabric_names, read_fabric
from tests.bench.closed_form.case import Unusable
from tests.bench.closed_form.collectives import (
    PEAK_BYTES,
    PLACES,
    Place,
    Sample,
    collective_results,
    fabrics_of,
    predicted_s,
    sample_of,
    samples,
)
from tests.bench.closed_form.fitting.links import figures, fit_link, with_figures
from tests.bench.closed_form.rows import Row

PUBLISHED = """collective,gpu,n_gpus,fabric,bytes,time_us,busbw_GBps,source,status
all_reduce,A100,8,NVLink intra-node,1048576,92.79,19.78,VIA-Research/vTrain@f8dda847 trace/a100,read
all_reduce,A100,8,NVLink intra-node,33554432,358.1,163.97,VIA-Research/vTrain@f8dda847 trace/a100,read
all_reduce,A100,8,NVLink intra-node,1073741824,8193.0,229.35,VIA-Research/vTrain@f8dda847 trace/a100,read
all_reduce,A100,2,NVLink intra-node,16777216,131.9,127.16,VIA-Research/vTrain@f8dda847 trace/a100,read
all_reduce,V100,3,NVLink intra-node,67108864,2003.9,44.65,VIA-Research/vTrain@f8dda847 trace/v100,read
all_reduce,V100,8,NVLink intra-node,67108864,911.3,128.88,VIA-Research/vTrain@f8dda847 trace/v100,read
all_reduce,"H200 8x (NVSwitch, NVLS/SHARP)",8,NVLink4 intra-node,65536,39.2,2.93,stas00/ml-engineering,read
all_reduce,"H200 8x (NVSwitch, NVLS/SHARP)",8,NVLink4 intra-node,268435456,1077.1,436.15,stas00/ml-engineering,read
all_reduce,H200,5,NVLink4 default algo,8589934592,,414.2,stas00/ml-engineering@744d01e1 network/README.md,read
all_reduce,H200,5,NVLink4 NVLS off (ring),8589934592,,364.4,stas00/ml-engineering@744d01e1 network/README.md,read
all_gather,H200,8,NVLink4 intra-node,17179869184,,361.4,stas00/ml-engineering@744d01e1 network/README.md,read
all_reduce,H100,,DGX H100: NVL4+8x400Gb RDMA,large (peak),,380,NVIDIA GTC24 S62129 slide 12,read
all_reduce,A100-SXM4-40GB 3x8,24,4x HDR200 per node,134217728,,84.8 avg / 96 peak,NVIDIA/nccl-tests issue #119,read
all_reduce,B200 4x8,32,NVLink5 + 8x400Gb EFAv4,1073741824,5747.1,361.99,stas00/ml-engineering@744d01e1,read
all_to_all,A100,8,NVLink3 intra,large (peak),,210,NVIDIA GTC25 slide 13,read
all_gather,MI200 (MI250 GCDs),4,intra-node XGMI,67108864,2020.5,24.91,microsoft/nnscaler@1585c15d mi200,read
all_to_all,MI200 (MI250 GCDs),16,intra-node XGMI,524288,549.7,0.89,microsoft/nnscaler@1585c15d mi200,read
all_reduce,MI300X,2,XGMI,4294967296,,47.671,stas00/ml-engineering@744d01e1 network/README.md,read
p2p copy,H100/H200 pair,2,NVLink4 device-to-device,large,,396.4,stas00/ml-engineering@744d01e1,read
all_reduce,unstated (A800-class? inferred),8,2nodes_8gpus_per_node consec=0,(galvatron default),,20.8,Galvatron,read
"""
"""Some rows of a collection of published measurements, each with its source."""


def rows() -> list[Row]:
    return [Row(number, line) for number, line in enumerate(csv.DictReader(io.StringIO(PUBLISHED)), start=1)]


def test_published_times_are_met():
    """Each of them within a fifth, and a twentieth on average: large, small, on one switch, on meshes, over nodes."""
    found, _ = samples(rows())
    links = fabrics_of(found)
    errors = {sample.row: predicted_s(sample, links) / sample.measured_s - 1 for sample in found}
    assert len(errors) == 18
    assert max(map(abs, errors.values())) < 0.2 and np.mean(np.abs(list(errors.values()))) < 0.05


def test_results_are_split_by_size_device_and_kind():
    results = collective_results(rows())
    by_name = {(result.name, result.series): result for result in results}
    a100 = by_name["collectives from 1 MiB", "A100, all-reduce"]
    assert [point.row for point in a100.fitted] == [1, 3] and [point.row for point in a100.reported] == [2, 4]
    small = [result.series for result in results if result.name == "collectives below 1 MiB"]
    assert small == ["H100, H200, all-reduce", "MI200, all-to-all"]
    assert results[0].left_out == (
        (1, "p2p copy: a copy between two devices, no collective"), (1, "neither bytes nor cards are stated"),
    )  # fmt: skip


def test_a_bus_bandwidth_is_a_time():
    """2(n-1)/n · bytes / time for an all-reduce, half of that for an all-gather."""
    held = {sample.row: sample for sample in samples(rows())[0]}
    assert held[9].measured_s == pytest.approx(2 * 4 / 5 * 8589934592 / 414.2e9)
    assert held[11].measured_s == pytest.approx(7 / 8 * 17179869184 / 361.4e9)
    assert (held[12].devices, held[12].bytes) == (64, PEAK_BYTES)
    assert held[13].measured_s == pytest.approx(2 * 23 / 24 * 134217728 / 84.8e9)


def test_a_row_of_an_unknown_device_is_left_out():
    row = Row(1, dict(rows()[0].text, gpu="A1000"))
    with pytest.raises(Unusable, match="A1000, NVLink intra-node: unknown"):
        sample_of(row)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.gpu}, {place.fabric}")
def test_every_place_names_fabrics_that_there_are(place):
    assert set(place.fabrics) <= set(fabric_names())
    path = place.path((place.per_node or 8) * place.nodes, {name: read_fabric(name) for name in place.fabrics})
    assert [members for members, _ in path] == ([place.per_node, place.nodes] if place.network else [8])


TRUE = Link(
    4e-6, 200e9, 30e-6, protocols=(Protocol("LL", 1e-6, 0.2),), group_bandwidths=((2, 100e9), (8, 200e9)),
    switch=Switch(70e-6, 180e9, members=4),
)  # fmt: skip
PLACE = Place("made", "made", "made", "made")


def made(link: Link, noise: float = 0.0) -> list[Sample]:
    random = np.random.default_rng(0)
    seconds = COLLECTIVES["all-reduce"]
    return [
        Sample(row, PLACE, "all-reduce", n, size, float(seconds(size, ((n, link),))) * (1 + noise * random.normal()))
        for row, (n, size) in enumerate((n, 2.0**power) for n in (2, 3, 4, 8) for power in range(14, 33))
    ]


def test_a_fit_finds_the_figures_that_made_the_times():
    start = with_figures(TRUE, figures(TRUE) * np.array([2, 0.5, 0.7, 1.4, 2, 1.5, 0.6, 1.3]))
    fitted = fit_link("made", made(TRUE), {"made": start})
    np.testing.assert_allclose(figures(fitted), figures(TRUE), rtol=0.02)
    assert fitted.bandwidth_bytes_per_s == fitted.group_bandwidths[-1][1]


def test_a_fit_of_noisy_times_is_nearer_than_its_start():
    start = with_figures(TRUE, figures(TRUE) * 1.5)
    held = made(TRUE, noise=0.05)
    fitted = fit_link("made", held, {"made": start})
    off = [np.mean([abs(predicted_s(s, {"made": link}) / s.measured_s - 1) for s in held]) for link in (fitted, start)]
    assert off[0] < 0.05 < off[1]


def test_a_vector_of_figures_is_its_link_again():
    tree = dataclasses.replace(TRUE, tree_latency_s=2e-5, bandwidth_bytes_per_s=200e9)
    assert with_figures(tree, figures(tree)) == tree
    plain = Link(1e-6, 1e9, 1e-5)
    assert with_figures(plain, figures(plain)) == plain
