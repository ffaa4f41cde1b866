"""Rows of a table of which a rank may have a slice: look-ups, and bags, pooled as ``functional.embedding_bag`` does."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.ops.embedding.ranges import check_rows


def embedding_bag(
    weight: Tensor, indices: Tensor, scales: Tensor | None = None, mode: str = "sum", padding_idx: int = -1
) -> Tensor:
    """weight [v, h], indices [.., l], scales [.., l] -> [.., h]: each bag's rows, scaled, pooled by "sum", "mean" or
    "max". Indices that are ``padding_idx`` don't count."""
    flat = indices.reshape(-1, indices.shape[-1])
    given = None if scales is None else scales.reshape(flat.shape)
    padding = None if padding_idx < 0 else padding_idx
    found = functional.embedding_bag(flat, weight, mode=mode, per_sample_weights=given, padding_idx=padding)
    return found.reshape(*indices.shape[:-1], weight.shape[1])


def ragged_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scales: Tensor | None = None, mode: str = "sum",
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """weight [v, h], indices [n], offsets [b], scales [n] -> [b, h]: bag i has the indices from offsets[i] up to the
    next bag's."""
    padding = None if padding_idx < 0 else padding_idx
    return functional.embedding_bag(
        indices, weight, offsets, mode=mode, per_sample_weights=scales, padding_idx=padding
    )


def vocab_parallel_embedding_bag(
    weight: Tensor, indices: Tensor, scales: Tensor | None = None, mode: str = "sum", padding_idx: int = -1,
    *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """Bags from this rank's slice of the table: weight S(0) [v/n, h], indices R [.., l] -> P [.., h]; sums and means.

    What another rank has counts as zero, so the ranks' results sum up to the bag.
    """
    index, ways = index_over(axes)
    check_rows(indices, ways * weight.shape[0])
    local, here = own_rows(indices, index * weight.shape[0], weight.shape[0], padding_idx)
    shares = shares_of(weight, here, scales)
    if mode == "mean":
        shares = shares / counted(indices, padding_idx).sum(-1, keepdim=True).clamp(min=1)
    return embedding_bag(weight, local, shares)


def vocab_parallel_ragged_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scales: Tensor | None = None, mode: str = "sum",
    padding_idx: int = -1, *, axes: Sequence[MeshAxis],
) -> Tensor:  # fmt: skip
    """The same of bags as offsets say: weight S(0) [v/n, h], all else R -> P [b, h]; sums and means."""
    index, ways = index_over(axes)
    check_rows(indices, ways * weight.shape[0])
    local, here = own_rows(indices, index * weight.shape[0], weight.shape[0], padding_idx)
    result = ragged_bag(weight, local, offsets, shares_of(weight, here, scales))
    if mode == "mean":
        places = torch.arange(len(indices), device=indices.device)
        bags = torch.searchsorted(offsets, places, right=True) - 1
        counts = torch.zeros_like(offsets).index_add_(0, bags, counted(indices, padding_idx).to(offsets.dtype))
        result = result / counts.clamp(min=1).unsqueeze(-1)
    return result


def own_rows(indices: Tensor, first: int, rows: int, padding_idx: int) -> tuple[Tensor, Tensor]:
    """Indices counted from a slice's first row, 0 for what lies elsewhere; which lie in it and aren't padding."""
    local = indices - first
    here = (local >= 0) & (local < rows) & counted(indices, padding_idx)
    return local.masked_fill(~here, 0), here


def counted(indices: Tensor, padding_idx: int) -> Tensor:
    return indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices, dtype=torch.bool)


def shares_of(weight: Tensor, here: Tensor, scales: Tensor | None) -> Tensor:
    """What each index' row is multiplied by: nothing elsewhere."""
    return here.to(weight.dtype) if scales is None else scales.masked_fill(~here, 0.0)


def vocab_parallel_embedding(
    weight: Tensor, ids: Tensor, padding_idx: int = -1, *, axes: Sequence[MeshAxis]
) -> Tensor:
    """Rows of a table of which this rank has a slice: weight S(0) [v/n, h], ids R [..] -> P [.., h].

    Ids that another rank has give zeros, so the ranks' results sum up to the look-up. (Shoeybi et al. 2019, section 3.)
    The row ``padding_idx`` (of the whole table) gets no gradient.
    """
    index, ways = index_over(axes)
    check_rows(ids, ways * weight.shape[0])
    local = ids - index * weight.shape[0]
    own = local.clamp(0, weight.shape[0] - 1)
    rows = functional.embedding(own, weight)
    if padding_idx >= 0:
        rows = torch.where((ids == padding_idx).unsqueeze(-1), rows.detach(), rows)
    return rows.masked_fill((own != local).unsqueeze(-1), 0.0)
