"""Which of a row's choices its experts take (`autoplan.rules.nn.expert_capacity`)."""

import torch
from torch import Tensor

from autoplan.rules.nn.expert_capacity import taken


def within_capacity(index: Tensor, scores: Tensor, experts: int, capacity: float, by_score: bool = False) -> Tensor:
    """index, scores [.., tokens, k] -> index, with the number of experts where a choice is dropped.

    Of each row's choices an expert takes the first ceil(capacity · tokens · k / experts): in the order of choices and
    then of tokens, or of their scores. Choices that name no expert stay as they are.
    """
    tokens, choices = index.shape[-2:]
    most = taken(tokens, choices, experts, capacity)
    rows = index.transpose(-1, -2).reshape(-1, choices * tokens)
    named = torch.where((rows < 0) | (rows >= experts), experts, rows)
    if by_score:
        wanted = scores.detach().transpose(-1, -2).reshape(rows.shape)
        first = torch.sort(wanted, dim=-1, descending=True, stable=True).indices
        by_expert, order = torch.sort(named.gather(-1, first), dim=-1, stable=True)
        order = first.gather(-1, order)
    else:
        by_expert, order = torch.sort(named, dim=-1, stable=True)
    numbers = torch.arange(experts + 1, device=index.device).repeat(rows.shape[0], 1)
    begins = torch.searchsorted(by_expert, numbers)
    place = torch.arange(rows.shape[1], device=index.device) - begins.gather(-1, by_expert)
    kept = torch.empty_like(rows, dtype=torch.bool).scatter_(-1, order, place < most)
    found = torch.where(kept, rows, experts)
    return found.view(*index.shape[:-2], choices, tokens).transpose(-1, -2)
