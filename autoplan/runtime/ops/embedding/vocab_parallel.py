"""Table look-up with the table's rows split."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from autoplan.runtime.collectives.mesh_axes import MeshAxis, index_over
from autoplan.runtime.ops.embedding.ranges import check_rows


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
    other = (local < 0) | (local >= weight.shape[0])
    rows = functional.embedding(local.masked_fill(other, 0), weight)
    if padding_idx >= 0:
        rows = torch.where((ids == padding_idx).unsqueeze(-1), rows.detach(), rows)
    return rows.masked_fill(other.unsqueeze(-1), 0.0)
