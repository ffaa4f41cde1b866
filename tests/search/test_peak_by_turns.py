"""What a rank of several stages is predicted to hold of gradients: those of the stage whose backwards go on."""

from __future__ import annotations

from tests.support.rehearsed_plans import llama, planned

FIELDS = {"dp": 2, "pp": 2, "zero": 1, "pipeline_schedule": "interleaved", "virtual_stages": 2}


def test_no_more_gradients_stand_than_of_the_stage_whose_backwards_go_on() -> None:
    """With as many microbatches as ranks each stage is done before the next begins, and its gradients are sent; with
    more of them all stages' gradients stand when activations are most."""
    few, many = (planned(llama(), "1x4 cpu", micro_batch=rows, **FIELDS).record.chosen for rows in (6, 1))
    assert few.microbatches == 2 < many.microbatches
    for some, every in zip(few.predicted.peak_bytes, many.predicted.peak_bytes, strict=True):
        assert some.gradients < 0.6 * every.gradients
