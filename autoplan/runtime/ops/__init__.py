"""Functions that an exported program calls in place of an operator.

Some are canonical operators that torch lacks or names otherwise (``cross_entropy``, ``batch_norm``, ``dropout``). The
others differ from rank to rank. They take the operator's arguments, local tensors, and ``axes``: the mesh axes that
split them, outermost first. Given operands in the states of their strategy, they return the result in its state; the
backward does the same for the dual states (`autoplan.ir.layout`).

Modules, each importing only those before it:

    global_random   dropout equal to one device's: by element, not by rank
    affine          products with a bias
    column_linear   column-parallel products, whose backward overlaps
    chunked_linear  products in chunks beside the redistribution before or after them
    attention       attention over split rows or heads
    rank_random     dropout of each rank's own, by torch's kernels
    embedding       look-ups in split tables
    loss            cross-entropy
    experts         mixtures of experts
    norm            batch norm
    buffers         buffers that forward changes
    batch_moves     the batch's rows gathered, sums made whole
    scan            running sums
    spatial         convolutions and pooling over a split dim
"""

from autoplan.ops.decompositions import decomposed
from autoplan.ops.recurrence import recurrence
from autoplan.runtime.ops.affine import affine
from autoplan.runtime.ops.attention.heads import (
    attention_with_dropout,
    causal_attention_rows,
    grouped_attention,
    grouped_query_attention,
)
from autoplan.runtime.ops.attention.ring import ring_attention
from autoplan.runtime.ops.batch_moves import batch_move
from autoplan.runtime.ops.buffers import read_buffer, update_buffer
from autoplan.runtime.ops.chunked_linear import chunked_linear, row_linear
from autoplan.runtime.ops.column_linear import column_linear, gathered_linear, joined_linear, regathered_linear
from autoplan.runtime.ops.embedding.lookups import lookups, placed_lookups
from autoplan.runtime.ops.embedding.vocab_parallel import (
    embedding_bag,
    ragged_bag,
    vocab_parallel_embedding,
    vocab_parallel_embedding_bag,
    vocab_parallel_ragged_bag,
)
from autoplan.runtime.ops.experts.beside_shared import return_tokens, run_experts, send_tokens
from autoplan.runtime.ops.experts.capacity import within_capacity
from autoplan.runtime.ops.experts.own_experts import experts, local_experts, scattered, top_indices
from autoplan.runtime.ops.experts.routed import routed_experts
from autoplan.runtime.ops.global_random import dropout, uniform
from autoplan.runtime.ops.loss.cross_entropy import (
    count_classes,
    count_valid,
    cross_entropy,
    weighted_cross_entropy,
)
from autoplan.runtime.ops.loss.ctc import ctc_losses
from autoplan.runtime.ops.loss.vocab_parallel import vocab_parallel_cross_entropy, vocab_parallel_weighted_cross_entropy
from autoplan.runtime.ops.norm import batch_norm, sync_batch_norm
from autoplan.runtime.ops.rank_random import attention_by_rank, dropout_by_rank
from autoplan.runtime.ops.scan import running_extreme, split_cumprod, split_cumsum, split_logcumsumexp
from autoplan.runtime.ops.spatial.pooling import adaptive_avg_pool, adaptive_max_pool
from autoplan.runtime.ops.spatial.windows import (
    avg_pool_along_2,
    avg_pool_along_3,
    avg_pool_along_4,
    convolution_along_2,
    convolution_along_3,
    convolution_along_4,
    max_pool_along_2,
    max_pool_along_3,
    max_pool_along_4,
)

__all__ = [
    "adaptive_avg_pool", "adaptive_max_pool", "affine", "attention_by_rank", "attention_with_dropout",
    "avg_pool_along_2", "avg_pool_along_3", "avg_pool_along_4", "batch_move", "batch_norm", "causal_attention_rows",
    "chunked_linear", "column_linear", "convolution_along_2", "convolution_along_3", "convolution_along_4",
    "count_classes", "count_valid", "cross_entropy", "ctc_losses", "decomposed", "dropout", "dropout_by_rank",
    "embedding_bag", "experts", "gathered_linear", "grouped_attention", "grouped_query_attention", "joined_linear",
    "local_experts", "lookups", "max_pool_along_2", "max_pool_along_3", "max_pool_along_4", "placed_lookups",
    "ragged_bag", "read_buffer", "recurrence", "regathered_linear", "return_tokens", "ring_attention", "routed_experts",
    "row_linear", "run_experts", "running_extreme", "scattered", "send_tokens", "split_cumprod", "split_cumsum",
    "split_logcumsumexp", "sync_batch_norm", "top_indices", "uniform", "update_buffer", "vocab_parallel_cross_entropy",
    "vocab_parallel_embedding", "vocab_parallel_embedding_bag", "vocab_parallel_ragged_bag",
    "vocab_parallel_weighted_cross_entropy", "weighted_cross_entropy", "within_capacity",
]  # fmt: skip
