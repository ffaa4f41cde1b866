"""Bytes held, against the analytic tables of the papers that they come from."""

from __future__ import annotations

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from cost_models.optimizers import OPTIMIZERS
from tests.bench.closed_form.transformer.losses import LOSSES, loss_bytes
from tests.bench.closed_form.transformer.states import (
    ACCOUNTS,
    FLOAT32_GRADIENTS,
    FLOAT32_STORED,
    OFFLOADS,
    PRECISIONS,
    STATES_PER_ELEMENT,
    ModelStates,
    optimizer_state_bytes,
    state_bytes,
)
from tests.oracles.korthikanti import outer_activation_bytes, output_tensors_bytes, transformer_layer_activation_bytes

ZERO_TABLE_1 = {  # GB a device by (parameters, data parallel degree): P_os, P_os+g, P_os+g+p
    (7.5e9, 1): (120, 120, 120), (7.5e9, 4): (52.5, 41.3, 30), (7.5e9, 16): (35.6, 21.6, 7.5),
    (7.5e9, 64): (31.4, 16.6, 1.88), (7.5e9, 256): (30.4, 15.4, 0.47), (7.5e9, 1024): (30.1, 15.1, 0.12),
    (128e9, 1): (2048, 2048, 2048), (128e9, 4): (896, 704, 512), (128e9, 16): (608, 368, 128),
    (128e9, 64): (536, 284, 32), (128e9, 256): (518, 263, 8), (128e9, 1024): (513, 257, 2),
    (1e12, 1): (16000, 16000, 16000), (1e12, 4): (7000, 5500, 4000), (1e12, 16): (4750, 2875, 1000),
    (1e12, 64): (4187, 2218, 250), (1e12, 256): (4046, 2054, 62.5), (1e12, 1024): (4011, 2013, 15.6),
}


@pytest.mark.parametrize(("case", "gigabytes"), ZERO_TABLE_1.items())
def test_zero_table_1(case, gigabytes):
    """Rajbhandari et al. 2020, table 1, to the digits printed there (which are cut off, not always rounded)."""
    elements, dp = case
    for zero, printed in enumerate(gigabytes, start=1):
        computed = state_bytes(elements, "bf16-mixed", "adamw", zero, dp).total_bytes / 1e9
        last_digit = 10.0 ** -len(str(printed).partition(".")[2])
        assert abs(computed - printed) < last_digit


@given(st.integers(1, 10**12), st.integers(1, 4096))
def test_zero_formulas(elements, dp):
    total = [state_bytes(elements, "bf16-mixed", "adam", zero, dp).total_bytes / elements for zero in range(4)]
    assert total == pytest.approx([16, 4 + 12 / dp, 2 + 14 / dp, 16 / dp])
    stored = [state_bytes(elements, "bf16-mixed", "adam", zero, dp, FLOAT32_STORED).total_bytes for zero in range(4)]
    assert stored == pytest.approx([elements * x for x in (16, 8 + 8 / dp, 4 + 12 / dp, 16 / dp)])
    buffered = [state_bytes(elements, "bf16-mixed", "adam", z, dp, FLOAT32_GRADIENTS).total_bytes for z in range(4)]
    assert buffered == pytest.approx([elements * x for x in (18, 6 + 12 / dp, 2 + 16 / dp, 18 / dp)])


@pytest.mark.parametrize(
    ("precision", "optimizer", "per_element"),
    [
        ("fp64", "adamw", 32), ("fp32", "adamw", 16), ("fp32", "sgd", 8), ("fp32", "sgd-momentum", 12),
        ("bf16", "adam", 8), ("bf16", "sgd", 4), ("bf16-mixed", "sgd-momentum", 12), ("fp16-mixed", "adam", 16),
    ],
)
def test_bytes_an_element(precision, optimizer, per_element):
    assert state_bytes(1000, precision, optimizer).total_bytes == per_element * 1000


def test_a_float32_parameter_is_its_own_master():
    states = state_bytes(10, "bf16-mixed", "adamw", account=FLOAT32_STORED)
    assert states == ModelStates(parameters_bytes=40, gradients_bytes=40, master_bytes=0, optimizer_bytes=80)


@given(
    st.integers(1, 10**12), st.sampled_from(sorted(PRECISIONS)), st.sampled_from(sorted(STATES_PER_ELEMENT)),
    st.integers(1, 2), st.integers(2, 4096), st.sampled_from([PRECISIONS, FLOAT32_STORED]),
)
def test_a_higher_level_or_more_devices_hold_no_more(elements, precision, optimizer, zero, dp, account):
    here = state_bytes(elements, precision, optimizer, zero, dp, account).total_bytes
    assert state_bytes(elements, precision, optimizer, zero + 1, dp, account).total_bytes < here
    assert state_bytes(elements, precision, optimizer, zero, dp + 1, account).total_bytes <= here
    assert state_bytes(elements, precision, optimizer, zero, 1, account).total_bytes >= here


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"precision": "fp8"}, "'fp8'"), ({"optimizer": "sofia"}, "'sofia'"), ({"zero": 4}, "zero 4")],
)
def test_what_is_not_known_is_refused(changed, words):
    asked = {"precision": "fp32", "optimizer": "adam", "zero": 0} | changed
    with pytest.raises(ValueError, match=words):
        state_bytes(1, **asked)


def test_korthikanti_table_2():
    """GPT-3 175B's layer: s 2048, b 1, h 12288, a 96, t 8; sbh = 25165824, 5as/h = 80."""
    sbh, layer = 25165824, (2048, 1, 12288, 96)
    assert transformer_layer_activation_bytes(*layer) == sbh * (34 + 80)
    assert transformer_layer_activation_bytes(*layer, tensor=8) == sbh * (10 + 3 + 10)
    assert transformer_layer_activation_bytes(*layer, tensor=8, sequence_parallel=True) == sbh * 114 / 8
    assert transformer_layer_activation_bytes(*layer, tensor=8, recompute="selective") == sbh * 13
    selective = transformer_layer_activation_bytes(*layer, tensor=8, sequence_parallel=True, recompute="selective")
    assert selective == sbh * 34 / 8
    assert transformer_layer_activation_bytes(*layer, tensor=8, recompute="full") == sbh * 2
    with pytest.raises(ValueError, match="'some'"):
        transformer_layer_activation_bytes(*layer, recompute="some")


def test_korthikanti_first_stage():
    """530B (s 2048, b 1, h 20480, v 51200, L 105, t 8, p 35), and the 2.73 GB of outputs in appendix B."""
    assert output_tensors_bytes(2048, 1, 20480, 35) / 2**30 == pytest.approx(2.73, abs=0.005)
    s, b, h, v, t = sympy.symbols("s b h v t", positive=True)
    alone = outer_activation_bytes(s, b, h, v, t)
    assert sympy.simplify(alone - s * b * h / t * (1 + 4 * (1 + v / h))) == 0
    assert outer_activation_bytes(2048, 1, 20480, 51200, 8, 35) == 2048 * 20480 * 35 / 8


OF_ADAM = [  # bytes an element of the optimizer's state, float32
    ("sgd", 0), ("sgd-momentum", 4), ("lion", 4), ("adagrad", 4), ("rmsprop", 4), ("adam", 8), ("adamw", 8),
    ("lamb", 8), ("amsgrad", 12), ("adam-8bit", 2 + 2 * 4 / 2048), ("lion-8bit", 1 + 4 / 2048),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "per_element"), OF_ADAM)
def test_optimizer_states(optimizer, per_element):
    assert optimizer_state_bytes(optimizer, 4096, 4) == per_element * 4096


def test_adafactor_keeps_rows_and_columns():
    assert optimizer_state_bytes("adafactor", 4096 * 1024, 4, 4096 + 1024) == 4 * 5120
    with pytest.raises(ValueError, match="give factored_elements"):
        state_bytes(4096, "bf16", "adafactor")
    assert "adafactor" not in STATES_PER_ELEMENT and "adam-8bit" not in STATES_PER_ELEMENT


def test_what_is_offloaded_is_not_here():
    """Ren et al. 2021: ZeRO-Offload leaves the 2 bytes of a half precision parameter."""
    states = {where: state_bytes(10, "fp16-mixed", "adam", 1, 2, offload=where) for where in OFFLOADS}
    assert [state.total_bytes for state in states.values()] == [10 * (4 + 12 / 2), 40, 20, 0]
    with pytest.raises(ValueError, match="'disk'"):
        state_bytes(1, "fp32", "adam", offload="disk")


X, RANKS = sympy.symbols("x n", positive=True)


@given(
    st.integers(1, 10**9), st.sampled_from(sorted(PRECISIONS)), st.sampled_from(sorted(OPTIMIZERS)), st.integers(0, 3),
    st.integers(1, 512), st.sampled_from(sorted(ACCOUNTS)),
)  # fmt: skip
def test_states_of_floats_arrays_and_symbols(elements, precision, optimizer, zero, dp, account):
    how = dict(precision=precision, optimizer=optimizer, zero=zero, account=ACCOUNTS[account], factored_elements=64)
    number = state_bytes(float(elements), dp=dp, **how).total_bytes
    assert state_bytes(np.array([elements], dtype=float), dp=dp, **how).total_bytes == pytest.approx([number])
    symbol = state_bytes(X, dp=RANKS, **how).total_bytes
    assert float(symbol.subs({X: elements, RANKS: dp})) == pytest.approx(number)
    assert state_bytes(elements + 1.0, dp=dp, **how).total_bytes > number
    assert state_bytes(0.0, dp=dp, **how | {"factored_elements": 0}).total_bytes == 0


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from([2, 4]), st.sampled_from(LOSSES), st.booleans())
def test_loss_of_floats_arrays_and_symbols(tokens, columns, element_bytes, loss, split):
    number = loss_bytes(tokens, columns, element_bytes, loss, split)
    assert loss_bytes(np.array([tokens]), columns, element_bytes, loss, split).tolist() == [number]
    assert loss_bytes(X, columns, element_bytes, loss, split).subs(X, tokens) == number
    assert number < loss_bytes(tokens + 1, columns, element_bytes, loss, split)
    assert loss_bytes(tokens, columns, element_bytes, "fused") <= number
    assert loss_bytes(0, columns, element_bytes, loss, split) == 0


def test_the_loss_of_megatron_and_of_torch():
    """Logits in 2 bytes: beside them one float32 copy, or in their stead three (four where the vocabulary is split)."""
    assert [loss_bytes(1, 1, 2, loss) for loss in LOSSES] == [12, 6, 4]
    assert loss_bytes(1, 1, 2, "eager", split=True) == 16
    with pytest.raises(ValueError, match="'chunked'"):
        loss_bytes(1, 1, 2, "chunked")
