"""The closed forms of a pipeline: one formula for numbers, arrays and symbols."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.pipeline import SCHEDULES, SPLIT
from cost_models.pipeline.bottleneck import bottleneck_of
from cost_models.pipeline.times import pipeline_times
from tests.oracles.pipeline_formulas import bubble_fraction, step_seconds

durations = st.floats(0.01, 10)
f, b, w, s, m, d = sympy.symbols("f b w s m d", positive=True)


def arguments(schedule, forward, backward, weight, send, ranks):
    """Stages that differ by a given factor, and all messages alike: (positional, by keyword)."""
    count = 2 if schedule in ("interleaved", "zbv") else 1
    stages = ranks * count
    scale = [1 + stage / 8 for stage in range(stages)]
    more = {"virtual_stages": 2} if schedule == "interleaved" else {}
    if schedule in SPLIT:
        more["weight_s"] = [weight * factor for factor in scale]
    back = [(backward + weight) * factor for factor in scale]
    return ([forward * factor for factor in scale], back, [send] * (stages - 1)), more


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.integers(6, 40), st.lists(durations, min_size=4, max_size=4))
def test_floats_arrays_and_symbols_give_the_same(schedule, ranks, microbatches, values):
    symbols = (f, b, w, s)
    numbers, more = arguments(schedule, *values, ranks)
    arrays, more_arrays = arguments(schedule, *(np.array([value, 2 * value]) for value in values), ranks)
    formulas, more_symbols = arguments(schedule, *symbols, ranks)
    of_numbers = step_seconds(*numbers, microbatches, schedule, **more)
    of_arrays = step_seconds(*arrays, microbatches, schedule, **more_arrays)
    formula = step_seconds(*formulas, m, schedule, **more_symbols)
    of_symbols = sympy.lambdify((*symbols, m), formula)(*values, microbatches)
    assert of_arrays == pytest.approx([of_numbers, 2 * of_numbers])
    assert of_symbols == pytest.approx(of_numbers)
    lengths = np.array([microbatches, 3 * microbatches])
    assert step_seconds(*numbers, lengths, schedule, **more)[0] == pytest.approx(of_numbers)
    steady, steady_arrays = (
        bottleneck_of(pipeline_times(schedule, *times, **named))
        for times, named in ((numbers, more), (arrays, more_arrays))
    )
    assert steady_arrays[1] == pytest.approx(2 * steady)


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(20, 60), durations, durations, durations)
def test_bubbles_of_floats_arrays_and_symbols_are_the_same(schedule, ranks, microbatches, forward, inputs, weight):
    v = 3 if schedule == "interleaved" else None
    times = {"forward_s": forward, "backward_s": inputs + weight, "weight_s": weight}
    number = bubble_fraction(ranks, microbatches, schedule, v, **times)
    array = bubble_fraction(ranks, np.array([microbatches, 2 * microbatches]), schedule, v, **times)
    formula = bubble_fraction(ranks, m, schedule, v, forward_s=f, backward_s=b, weight_s=w)
    values = {m: microbatches, f: forward, b: inputs + weight, w: weight}
    assert array[0] == pytest.approx(number)
    assert float(sympy.sympify(formula).subs(values)) == pytest.approx(number)
    assert 0 <= array[1] <= array[0] < 1


def test_formulas_read_as_in_the_papers():
    assert bubble_fraction(d, m) == (d - 1) / (m + d - 1) == bubble_fraction(d, m, "gpipe")
    assert bubble_fraction(d, m, "interleaved", 2) == (d - 1) / (2 * m + d - 1)
    equal = [f] * 4, [b] * 4, [0] * 3, m
    assert sympy.simplify(step_seconds(*equal) - (m + 3) * (f + b)) == 0
    assert sympy.simplify(step_seconds(*equal, "gpipe") - (m + 3) * (f + b)) == 0
    assert step_seconds(*equal, "pipedream") == m * (f + b) == step_seconds(*equal, "pipedream-2bw")
    halves = step_seconds([f / 2] * 8, [b / 2] * 8, [0] * 7, m, "interleaved", virtual_stages=2)
    assert sympy.simplify(halves - (m + sympy.Rational(3, 2)) * (f + b)) == 0


def test_zero_bubble_s_formula_is_the_paper_s():
    """Qi et al. 2023, table 2: 1F1B waits (d-1)(f + i + w), ZB-H1 (d-1)(f + i - w)."""
    ranks, microbatches, forward, inputs, weight = 8, 24, 1.0, 1.2, 0.9
    bubble_s = 7 * (forward + inputs - weight)
    work_s = microbatches * (forward + inputs + weight)
    fraction = bubble_fraction(
        ranks, microbatches, "zero-bubble", forward_s=forward, backward_s=inputs + weight, weight_s=weight
    )
    assert fraction == pytest.approx(bubble_s / (work_s + bubble_s))


def test_more_chunks_and_more_microbatches_leave_less_to_wait_for():
    assert bubble_fraction(8, 8) == 7 / 15
    assert bubble_fraction(8, 8, "interleaved", 4) == 7 / 39
    assert bubble_fraction(1, 3) == 0
    fractions = bubble_fraction(8, np.array([8, 16, 64]))
    assert (np.diff(fractions) < 0).all()
