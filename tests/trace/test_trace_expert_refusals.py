"""Loops over experts that no sum of experts stands for: each is refused with its line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autoplan.errors import TraceError
from autoplan.trace.pipeline import trace
from tests.support.expert_routers import EXPERTS, Router, batch

torch.set_num_threads(1)


class Normed(Router):
    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(index == number)
            y[token] += scores[token, choice, None] * F.normalize(expert(x[token]))
        return y


class Counted(Router):
    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(index == number)
            y[token] += scores[token, choice, None] * expert(x[token]) / (1 + token.numel())
        return y


class Few(Router):
    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(index == number)
            if x[None, token].shape[1] < 3:
                continue
            y[token] += scores[token, choice, None] * expert(x[token])
        return y


class Long(Router):
    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(index == number)
            y[token] += scores[token, choice, None] * expert(x[token]) / len(token)
        return y


class Written(Router):
    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, _ = torch.where(index == number)
            y[token] = expert(x[token])
        return y


class Leaking(Router):
    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        token, _ = torch.where(index == 1)
        return x + self.experts[1](x[token]).sum()


class Body(Router):
    """A loop over all experts, or over those that were hit, whose body is given."""

    def __init__(self, body: Callable[[Router, Tensor, Tensor, Tensor, Tensor], Tensor], least: int = 0) -> None:
        super().__init__()
        self.body, self.least = body, least

    def mixed(self, x: Tensor, index: Tensor, scores: Tensor) -> Tensor:
        return self.body(self, x, index, scores, torch.zeros_like(x))


def summed(
    rows: Callable[[Router, int, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor],
) -> Callable[[Router, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A loop that adds up what is given of (module, expert, x, scores, sum, token, choice)."""

    def body(module: Router, x: Tensor, index: Tensor, scores: Tensor, y: Tensor) -> Tensor:
        for number in range(EXPERTS):
            token, choice = torch.where(index == number)
            y.index_add_(0, token, rows(module, number, x, scores, y, token, choice))
        return y

    return body


def hit_loop(stops: bool, shares: bool) -> Callable[[Router, Tensor, Tensor, Tensor, Tensor], Tensor]:
    def body(module: Router, x: Tensor, index: Tensor, scores: Tensor, y: Tensor) -> Tensor:
        mask = F.one_hot(index, EXPERTS).permute(2, 1, 0)
        hit = torch.greater(mask.sum((-1, -2)), module.least).nonzero()
        for done, number in enumerate(hit):
            if stops and done == 2:
                break
            choice, token = torch.where(mask[number].squeeze(0))
            y.index_add_(0, token, module.experts[number[0]](x[token]) * scores[token, choice, None])
        return y / len(hit) if shares else y

    return body


def gate_dropped(
    module: Router, number: int, x: Tensor, scores: Tensor, y: Tensor, token: Tensor, choice: Tensor
) -> Tensor:
    expert, rows = module.experts[number], x[token]
    return expert.down(F.dropout(F.silu(expert.up(rows)), 0.5) * expert.up(rows)) * scores[token, choice, None]


def ungraded(module: Router, number: int, rows: Tensor) -> Tensor:
    with torch.no_grad():
        return module.experts[number](rows)


BODIES = {
    "a count is multiplied by": lambda m, n, x, s, y, t, c: (m.experts[n](x[t]) * s[t, c, None]) * t.size(0),
    "a count divides a tensor": lambda m, n, x, s, y, t, c: m.experts[n](x[t]) * (s.mean() / t.numel()),
    "a count as a number": lambda m, n, x, s, y, t, c: m.experts[n](x[t]) * s[t, c, None] * int(t.numel()),
    "scores detached": lambda m, n, x, s, y, t, c: m.experts[n](x[t]) * s[t, c, None].detach(),
    "rows detached": lambda m, n, x, s, y, t, c: m.experts[n](x[t].detach()) * s[t, c, None],
    "no gradients": lambda m, n, x, s, y, t, c: ungraded(m, n, x[t]) * s[t, c, None],
    "the sum so far": lambda m, n, x, s, y, t, c: m.experts[n](y[t]) * s[t, c, None],
}
CAUSES = {
    "a count": "how many tokens an expert got",
    "scores": "are detached", "rows": "are detached", "no gradients": "another gradient mode",
    "the sum": "what others have added",
}  # fmt: skip


def told_apart(module: Router, x: Tensor, index: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    """Whether an expert has tokens changes what is no expert's."""
    return x * 2 if (index == 1).any() else x + module.experts[0](x)


def half(index: Tensor, number: int) -> Tensor:
    return index if number % 2 else index * 1


def by_others(module: Router, x: Tensor, index: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    for number in range(EXPERTS):
        token, choice = torch.where(half(index, number) == number)
        y.index_add_(0, token, module.experts[number](x[token]) * scores[token, choice, None])
    return y


def whose_tokens(
    body: Callable[[int, Tensor, Tensor, Callable[[Tensor], Tensor], list[Tensor]], Tensor | None], ahead: int = 0
) -> Callable[[Router, Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A loop in which a body of (expert, whose choices, sum, what adds, penalties) does what it likes; None ends it."""

    def loop(module: Router, x: Tensor, index: Tensor, scores: Tensor, y: Tensor) -> Tensor:
        penalties: list[Tensor] = []
        for number in range(EXPERTS):
            token, choice = torch.where(index == number)
            rows = scores[token, choice, None] * module.experts[number](x[token])
            asked = index == (number + ahead) % EXPERTS
            found = body(number, asked, y, lambda y, at=token, r=rows: y.index_add(0, at, r), penalties)
            if found is None:
                break
            y = found
        return y + sum(penalties)

    return loop


def counted_hits(module: Router, x: Tensor, index: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    mask, hits = F.one_hot(index, EXPERTS).permute(2, 1, 0), 0
    for number in torch.greater(mask.sum((-1, -2)), 0).nonzero():
        choice, token = torch.where(mask[number].squeeze(0))
        y.index_add_(0, token, module.experts[number[0]](x[token]) * scores[token, choice, None])
        hits += 1
    return y / hits


def chosen_by_size(module: Router, x: Tensor, index: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    token, _ = torch.where(index == 1)
    return module.experts[2](x) if token.numel() else module.experts[0](x)


BY_TOKENS = "a branch by whether an expert has tokens does something else"
BRANCHES = {
    "it also computes": lambda n, i, y, add, p: p.append(torch.ones(())) or add(y) if i.any() else y,
    "else": lambda n, i, y, add, p: add(y) if i.any() else y + 1,
    "break": lambda n, i, y, add, p: add(y) if i.any() else None,
    "break of the third": lambda n, i, y, add, p: None if n == 2 and i.sum() == 0 else add(y),
}  # fmt: skip
REFUSED = {
    **{f"tokens: {name}": (lambda body=body: Body(whose_tokens(body)), BY_TOKENS) for name, body in BRANCHES.items()},
    "by another's tokens": (lambda: Body(whose_tokens(lambda n, i, y, add, p: add(y) if i.any() else y, 1)), BY_TOKENS),
    "hits are counted": (lambda: Body(counted_hits), "the experts that were hit does something else"),
    "by whether a size is zero": (lambda: Body(chosen_by_size), BY_TOKENS),
    "a branch that adds nothing": (lambda: Body(told_apart), "a branch by whether an expert has tokens"),
    "by different choices": (lambda: Body(by_others), "chosen by different tensors"),
    **{
        name: (lambda rows=rows: Body(summed(rows)), next(cause for of, cause in CAUSES.items() if name.startswith(of)))
        for name, rows in BODIES.items()
    },
    "the loop stops": (lambda: Body(hit_loop(True, False)), "ends before the last of them"),
    "by how many were hit": (lambda: Body(hit_loop(False, True)), "how many experts were hit"),
    "from a number of tokens": (lambda: Body(hit_loop(False, False), least=12), "by how many tokens they got"),
    "a gate drops": (lambda: Body(summed(gate_dropped)), "dropout is read behind an activation"),
    "not by elements": (Normed, "isn't rows of a tensor|elementwise"),
    "by a count": (Counted, "how many tokens an expert got"),
    "by whether they are few": (Few, "how many tokens an expert got"),
    "by their length": (Long, "len of an expert's tokens"),
    "overwritten": (Written, "it has to be added"),
    "its sum is read": (Leaking, "forward's result follows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_any_other_loop_is_refused_with_its_line(name: str) -> None:
    make, cause = REFUSED[name]
    with pytest.raises(TraceError, match=cause) as told:
        trace(make(), batch(), training=True)
    assert "index_add_" in str(told.value)
