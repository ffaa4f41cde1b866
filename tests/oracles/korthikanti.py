"""Saved activations of a GPT layer and of what surrounds the layers, as Korthikanti et al. count them.

What a transformer's operators save under other kernels is in ``tests.bench.closed_form.transformer.saved``.
"""

from __future__ import annotations

from cost_models.arithmetic import Number


def transformer_layer_activation_bytes(
    sequence: Number,
    micro_batch: Number,
    hidden: Number,
    heads: Number,
    tensor: Number = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> Number:
    """Saved activations of one GPT layer in 16 bit with unfused attention and dropout, in bytes.

    recompute  "none", "selective" (the attention core is recomputed), "full" (only the layer's input is kept)

    Korthikanti et al. 2022, table 2: sbh(34 + 5as/h) without parallelism, sbh(10 + 24/t + 5as/(ht)) with tensor
    parallelism, sbh(34 + 5as/h)/t with sequence parallelism too; selective drops the 5as/h; full leaves 2sbh, which
    sequence parallelism does not share out. An analytic check: a plan's own figure is what its operators save.
    """
    sbh = 1.0 * sequence * micro_batch * hidden
    if recompute == "full":
        return 2 * sbh
    if recompute not in ("none", "selective"):
        raise ValueError(f"recompute {recompute!r} is none of none, selective, full")
    attention = 5.0 * heads * sequence / hidden if recompute == "none" else 0.0
    whole = 10 / tensor if sequence_parallel else 10
    return sbh * (whole + 24 / tensor + attention / tensor)


def outer_activation_bytes(
    sequence: Number, micro_batch: Number, hidden: Number, vocabulary: Number, tensor: Number = 1, pipeline: int = 1
) -> Number:
    """What the first stage saves outside its layers with tensor and sequence parallelism, in bytes: the embedding's
    dropout mask of p microbatches, sbhp/t; and without a pipeline the last norm's input (2sbh/t), the head's (2sbh/t)
    and the float32 logits (4sbv/t) (Korthikanti et al. 2022, section 4.3: sbhL/t · (p/L + δ·4/L·(1 + v/h)))."""
    sbh = 1.0 * sequence * micro_batch * hidden / tensor
    return sbh * pipeline + (4 * sbh * (1 + vocabulary / hidden) if pipeline == 1 else 0.0)


def output_tensors_bytes(sequence: Number, micro_batch: Number, hidden: Number, pipeline: int) -> Number:
    """What the first stage saves by letting go of its output once it is sent, in bytes: 2sbh of each of p microbatches
    (Korthikanti et al. 2022, appendix B)."""
    return 2.0 * sequence * micro_batch * hidden * pipeline
