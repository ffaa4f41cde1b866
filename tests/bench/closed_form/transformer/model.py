"""A transformer and how it is trained, as numbers: what the closed forms of a training step are written in.

Every size may be a number or a SymPy symbol, the counts of ranks in ``Recipe`` are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_models.arithmetic import Number
from tests.bench.closed_form.transformer.losses import LOSSES
from tests.bench.closed_form.transformer.states import ACCOUNTS, OFFLOADS, PRECISIONS, STATES_PER_ELEMENT

CHOICES: Mapping[str, tuple[object, ...]] = {
    "norm": ("layer", "rms"), "positions": ("learned", "rotary", "none"), "zero": (0, 1, 2, 3),
    "recompute": ("none", "selective", "operators", "full"),
    "schedule": ("gpipe", "1f1b", "interleaved", "zero-bubble"), "matmul": ("bfloat16", "float8"),
    "float8_scaling": ("tensorwise", "rowwise"), "precision": tuple(PRECISIONS), "optimizer": tuple(STATES_PER_ELEMENT),
    "account": tuple(ACCOUNTS), "offload": tuple(OFFLOADS), "loss": tuple(LOSSES),
}  # fmt: skip
"""What the fields of ``Transformer`` and ``Recipe`` that name something may be."""


@dataclass(frozen=True)
class Transformer:
    """A decoder, or an encoder where ``causal`` is False.

    hidden, layers, heads  width, blocks, query heads
    sequence               tokens of one sequence
    vocabulary             rows of the embedding as stored (padded, where the trainer pads it)
    kv_heads, head_dim     key and value heads (None: as many as ``heads``), extent of a head (None: hidden / heads)
    ffn, gated             inner width (None: 4·hidden); a gated one has a third matrix (SwiGLU)
    tied                   the head multiplies by the embedding's own matrix
    bias                   linears have biases, and norms too
    norm                   "layer" (LayerNorm) or "rms" (RMSNorm)
    positions              "learned" (an embedding), "rotary", or "none" (also: ALiBi, which adds nothing of a price)
    dropout                after attention's softmax and after each branch
    causal                 a query sees the keys up to its own place
    experts, top_k         of a mixture, in each layer; 0: one dense feed-forward
    expert_ffn             inner width of one expert (None: ``ffn``)
    fused_projections      query, key and value are slices of one product's result, which lives as long as one of them
    """

    hidden: Number
    layers: Number
    heads: Number
    sequence: Number
    vocabulary: Number
    kv_heads: Number | None = None
    head_dim: Number | None = None
    ffn: Number | None = None
    gated: bool = False
    tied: bool = True
    bias: bool = True
    norm: str = "layer"
    positions: str = "learned"
    dropout: bool = False
    causal: bool = True
    experts: int = 0
    top_k: int = 0
    expert_ffn: Number | None = None
    fused_projections: bool = False

    @property
    def head_width(self) -> Number:
        """Extent of one head."""
        return self.hidden / self.heads if self.head_dim is None else self.head_dim

    @property
    def query_width(self) -> Number:
        """Columns of the query projection."""
        return self.hidden if self.head_dim is None else self.heads * self.head_dim

    @property
    def key_width(self) -> Number:
        """Columns of the key projection, and of the value's."""
        return self.query_width if self.kv_heads is None else self.kv_heads * self.head_width

    @property
    def inner(self) -> Number:
        """Inner width of a dense feed-forward."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def expert_inner(self) -> Number:
        """Inner width of one expert."""
        return self.inner if self.expert_ffn is None else self.expert_ffn

    @property
    def feed_forward_matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def layer_parameters(self) -> Number:
        """Elements of one layer: attention, feed-forward or experts with their router, two norms."""
        attention = self.hidden * (2 * self.query_width + 2 * self.key_width)
        norms = 2 * self.hidden * (2 if self.bias else 1)
        biases = (self.query_width + 2 * self.key_width + self.hidden) if self.bias else 0
        if self.experts:
            expert = self.feed_forward_matrices * self.hidden * self.expert_inner
            return attention + norms + biases + self.experts * (expert + self.hidden)
        inner_bias = (self.inner * (2 if self.gated else 1) + self.hidden) if self.bias else 0
        return attention + norms + biases + self.feed_forward_matrices * self.hidden * self.inner + inner_bias

    @property
    def expert_parameters(self) -> Number:
        """Elements of one layer's experts, of ``layer_parameters``; 0 where it is dense."""
        return self.experts * self.feed_forward_matrices * self.hidden * self.expert_inner

    @property
    def embedding_parameters(self) -> Number:
        """Elements of the token embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> Number:
        """Elements in all."""
        head = 0 if self.tied else self.embedding_parameters
        positions = self.sequence * self.hidden if self.positions == "learned" else 0
        last_norm = self.hidden * (2 if self.bias else 1)
        return self.layers * self.layer_parameters + self.embedding_parameters + head + positions + last_norm


@dataclass(frozen=True)
class Recipe:
    """How a transformer is trained, on ``devices`` ranks.

    tensor, context, data, pipeline  ranks on each axis, innermost first in this order
    expert                           ranks that share out the experts, within tensor·context·data
    zero                             what the data axis shares out: 0 nothing, 1 optimizer state, 2 gradients too,
                                     3 parameters too
    gathers_each_microbatch          ZeRO-3 gathers parameters again in each microbatch (FSDP); False: once a step
    gathers_a_layer                  all-gathers in which ZeRO-3 collects a layer: 1 where it is stored flat (FSDP), one
                                     for each parameter where they are fetched singly
    prefetches_backward              ZeRO-3's gathers of the backward run ahead, under the layer before (FSDP's
                                     BACKWARD_PRE); False: each layer waits for its own (BACKWARD_POST)
    micro_batch                      sequences of one microbatch on one data rank
    microbatches                     of one step on one data rank
    sequence_parallel                norms and residuals are split along the sequence over the tensor axis
    schedule, virtual_stages         of the pipeline: "gpipe", "1f1b", "interleaved", "zero-bubble"; chunks a rank
    recompute                        "none", "selective" (attention's core), "operators" (all but every second
                                     product's and attention's results), "full" (all but the layer's input)
    recomputed_layers                share of the layers that recompute, 0 to 1
    precision, matmul                "bf16-mixed" (see ``memory.PRECISIONS``); "float8": linears of the layers in 8 bit
    float8_scaling                   "tensorwise", "rowwise": how those are scaled
    fused_attention                  no quadratic intermediate (FlashAttention); False: scores go through memory
    skips_masked                     a fused causal attention leaves the masked pairs out, and a softmax whose scores go
                                     through memory doesn't read them; False: none is left out
    compiled                         elementwise chains are one kernel each
    overlaps_gradients               the data axis's reductions run under the backward
    overlaps_tensor                  the tensor axis's collectives run in pieces under the matmuls (async TP)
    overlaps_messages                a stage computes while its messages travel; False: it waits for each (Megatron-LM
                                     until 2023)
    hides_input_gradients            the tensor axis's reductions of the backward run under the weights' gradients
                                     (Megatron-LM since 2022); False: what follows waits for them
    relays                           collectives reach the cards of other devices over the devices' own links (NCCL
                                     since 2.12, "PXN"); False: through the host
    optimizer                        a name of ``memory.STATES_PER_ELEMENT``
    gradient_bytes                   of an element of a gradient as it is reduced
    account                          who keeps which precision: a name of ``memory.ACCOUNTS``
    offload                          what the host holds: one of ``memory.OFFLOADS``
    expert_tensor                    ranks that split one expert's matrices
    regathers                        what sequence parallelism gathers for a product is gathered again for its backward
                                     (Korthikanti et al. 2022, section 4.2.2); False: it is kept whole
    loss                             how the cross-entropy is written: one of ``memory.LOSSES``
    keeps_messages                   the pipeline's buffers for the messages of all microbatches, and the last stage's
                                     outputs, stand throughout (torch.distributed.pipelining)
    """

    tensor: int = 1
    context: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    zero: int = 0
    gathers_each_microbatch: bool = True
    gathers_a_layer: int = 1
    prefetches_backward: bool = True
    micro_batch: Number = 1
    microbatches: int = 1
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    virtual_stages: int = 1
    recompute: str = "none"
    recomputed_layers: float = 1.0
    precision: str = "bf16-mixed"
    matmul: str = "bfloat16"
    float8_scaling: str = "tensorwise"
    fused_attention: bool = True
    skips_masked: bool = True
    compiled: bool = False
    overlaps_gradients: bool = True
    overlaps_tensor: bool = False
    overlaps_messages: bool = True
    hides_input_gradients: bool = False
    relays: bool = True
    optimizer: str = "adam"
    gradient_bytes: int = 2
    account: str = "half"
    offload: str = "none"
    expert_tensor: int = 1
    regathers: bool = True
    loss: str = "eager"
    keeps_messages: bool = False

    @property
    def devices(self) -> int:
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def sequences(self) -> Number:
        """Sequences of one step over all ranks: the global batch."""
        return self.micro_batch * self.microbatches * self.data
