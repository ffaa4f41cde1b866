"""What all experts of a loop add, as one ``autoplan::experts``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes  # nowhere public

from autoplan.trace.expert_loops.expert_index import Selection, index_like, unshaped
from autoplan.trace.expert_loops.expert_parts import Part, Product, part_of
from autoplan.trace.expert_loops.forward_calls import CASTS, PLAIN, SHAPED, Call, Unlike, leaves, plain, result_of
from autoplan.trace.expert_loops.loop_numbers import Expert
from autoplan.trace.mixtures import activation_text, added_up, each_choice

VIEWED = CASTS | PLAIN | SHAPED | {"unflatten", "getitem"}


def sums_of(added: Sequence[tuple[Any, Call]]) -> Tensor:
    """What several loops over the same experts add to one sum: ``sum_of`` of each, of the first choices, of the
    second."""
    loops: list[list[tuple[Any, Call]]] = []
    times: Counter[int] = Counter()
    for rows, place in added:
        expert = place.args[0].expert
        if times[expert] == len(loops):
            loops.append([])
        loops[times[expert]].append((rows, place))
        times[expert] += 1
    return reduce(torch.add, map(sum_of, loops))


def sum_of(added: Sequence[tuple[Any, Call]]) -> Tensor:
    """The sum over all tokens, [tokens, o], of what experts add: rows each, at the places of a selection.

    added  (rows, the call of the place that they are added at) of each
    Unlike where that isn't a mixture.
    """
    parts = [part_of(rows, place.args[0]) for rows, place in added]
    parts.sort(key=lambda part: part.selection.expert)
    if [part.selection.expert for part in parts] != list(range(len(parts))):
        raise Unlike("not each expert adds once")
    one = parts[0]
    tokens = (added[0][1].args[1],)
    if len({named_by(part.selection) for part in parts}) > 1:
        raise Unlike("experts are chosen by different tensors")
    numbered = len({shape_of(part, None) for part in parts}) > 1  # else a number there is the same column for all
    shapes = {shape_of(part, part.selection.expert if numbered else None) for part in parts}
    if len({place.args[1] for _, place in added}) > 1 or len(shapes) > 1:
        raise Unlike("experts read or add tokens at different places of the mask")
    index, count = index_like(one.selection, len(parts))
    choices = [d for d in range(index.ndim) if d not in tokens and index.shape[d] > 1]
    if len(choices) > 1:
        raise Unlike("a token's choices lie along several dims of the mask")
    index = index.permute(*tokens, *(d for d in range(index.ndim) if d not in tokens))
    index = index.reshape(index.shape[0], -1)
    hidden, places = one.hidden
    if dims_of(places, one.selection.expert) != list(tokens) or result_of(hidden).ndim != 2:
        raise Unlike("an expert's rows aren't those of the tokens that it adds to")
    scores = score_of(one, one.selection.expert if numbered else None, tokens, index)
    computing = [part for part in parts if part.first]
    back = [part for part in parts if not part.first]
    if len({part.key for part in computing}) > 1 or computing != parts[: len(computing)]:
        raise Unlike("experts compute differently")
    hidden = result_of(hidden)
    total = mixture(hidden, index, scores, computing, count) if computing else None
    if back:
        own = (scores * (index >= len(computing))).sum(-1, keepdim=True).to(hidden.dtype) * hidden
        total = own if total is None else total + own
    assert total is not None
    return total


def have_weights_apart(added: Sequence[tuple[Any, Call]]) -> bool:
    """Whether each expert has parameters by itself: one device gives them no gradient where no token chose it."""
    downs = [part.down for rows, place in added if (part := part_of(rows, place.args[0])).down is not None]
    return not all(isinstance(down.weight, Call) and entry(down.weight) is not None for down in downs if down)


def named_by(selection: Selection) -> tuple[object, str]:
    """Equal for experts' masks that are made of the same choices."""
    made = unshaped(selection.mask)
    return source_of(made.args[0]), made.name


def shape_of(part: Part, expert: int | None) -> tuple:
    """What has to be the same of all experts; ``expert``: as ``told`` takes it."""
    scores = tuple((id(result_of(of)), told(places, expert)) for of, places in part.scores)
    return id(result_of(part.hidden[0])), told(part.hidden[1], expert), scores, part.factor


def told(places: tuple, expert: int | None) -> tuple:
    """What a tensor is indexed by, alike for all experts: "expert" is the number of the one that is read; None: numbers
    are columns."""

    def of(one: Any) -> object:
        if isinstance(one, Call) and one.name == "place":
            return one.args[1]
        return "expert" if isinstance(one, int) and one == expert else str(one)

    return tuple(map(of, places))


def dims_of(places: tuple, expert: int | None) -> list[object]:
    return [one for one in told(places, expert) if one not in ("None", "slice(None, None, None)", "Ellipsis")]


def sources_of(added: Sequence[tuple[Any, Call]]) -> list[Tensor]:
    """Of which tensors experts read their rows and scores."""
    parts = [part_of(rows, place.args[0]) for rows, place in added]
    return [result_of(of) for part in parts for of in (part.hidden[0], *(score for score, _ in part.scores))]


def score_of(part: Part, expert: int | None, tokens: tuple[int, ...], index: Tensor) -> Tensor:
    """What multiplies each choice's result, [tokens, choices]."""
    scores = [(result_of(of), dims_of(places, expert)) for of, places in part.scores]
    found = [one_score(of, dims, tokens, index) for of, dims in scores]
    if not found:
        hidden = result_of(part.hidden[0])
        found = [torch.full(index.shape, 1.0, dtype=hidden.dtype, device=hidden.device)]
    product = reduce(torch.mul, found)
    return product if part.factor == 1 else product * part.factor


def one_score(of: Tensor, dims: Sequence[object], tokens: tuple[int, ...], index: Tensor) -> Tensor:
    if dims[:1] == list(tokens) and len(dims) == 1 and math.prod(of.shape[1:]) == 1:
        return of.reshape(-1, 1).expand(index.shape)
    if of.ndim == 2 and len(dims) == 2:
        if dims[1] == "expert":
            return of.gather(1, index.clamp(max=of.shape[1] - 1))
        if str(dims[1]).isdigit() and dims[0] == tokens[0] and isinstance(dims[1], str):
            return of[:, int(dims[1])].unsqueeze(1).expand(index.shape)
        of = of if dims[0] == tokens[0] else of.t()
        if of.shape == index.shape:
            return of
    raise Unlike("what multiplies an expert's result isn't one number for each of a token's choices")


def text_between(function: Callable[..., Tensor], products: int, fused: int) -> tuple[str, int]:
    """As ``activation_text``, of what an expert of a loop runs between its products; Unlike where it has no text."""
    with _disable_current_modes():
        text, halves = activation_text(function, products, fused)
    if text is None:
        raise Unlike("between an expert's products stands more than elementwise functions of them")
    return text, halves


def mixture(hidden: Tensor, index: Tensor, scores: Tensor, parts: Sequence[Part], count: int) -> Tensor:
    """``count``: one more than the greatest number in ``index``."""
    one = parts[0]
    assert one.down is not None and one.function is not None
    width = result_of(one.down.weight).shape[0 if one.down.turned else 1]
    wide = result_of(one.first[0].weight).shape[1 if one.first[0].turned else 0]
    text, halves = text_between(one.function, len(one.first), wide // width)
    if any(one.drops):
        return choice_by_choice(hidden, index, scores, parts)
    products = [[part.first[i] for part in parts] for i in range(len(one.first))]
    downs = [part.down for part in parts if part.down is not None]
    transposed = one.first[0].turned
    first = [half for each in products for half in apart(weights_of(each, transposed), halves, 2 if transposed else 1)]
    biased = [each for each in products if each[0].bias is not None]
    if biased and len(biased) < len(products):
        raise Unlike("one of an expert's first products has a bias and another has none")
    biases = [half for each in biased for half in apart(stacked([p.bias for p in each]), halves, 1)]
    last = stacked([p.bias for p in downs]) if downs[0].bias is not None else None
    down = weights_of(downs, transposed)
    return added_up(hidden, index, scores, first, down, biases, last, text, transposed, count)


def choice_by_choice(hidden: Tensor, index: Tensor, scores: Tensor, parts: Sequence[Part]) -> Tensor:
    """The same of experts that drop: each of a token's choices is a row of its own, of which others aren't dropped."""
    one, (tokens, choices), experts = parts[0], index.shape, len(parts)
    assert one.down is not None and one.function is not None
    flat = index.reshape(-1)
    rows = hidden.unsqueeze(1).expand(tokens, choices, hidden.shape[1]).reshape(tokens * choices, hidden.shape[1])

    def product(of: Tensor, each: Sequence[Product]) -> Tensor:
        found = each_choice(of, flat, weights_of(each, transposed=False))
        if each[0].bias is not None:
            found = found + F.embedding(flat.clamp(max=experts - 1), stacked([p.bias for p in each]))
        return found.view(tokens, choices, found.shape[1])

    inner = one.function(*(product(rows, [part.first[i] for part in parts]) for i in range(len(one.first))))
    for part in reversed(one.drops[0]):
        inner = F.dropout(inner, part)
    given = product(inner.reshape(tokens * choices, inner.shape[2]), [part.down for part in parts if part.down])
    for part in reversed(one.drops[1]):
        given = F.dropout(given, part)
    named = scores if one.down.bias is None else scores * (index < experts)
    return (given * named.unsqueeze(-1)).sum(1).to(hidden.dtype)


def apart(whole: Tensor, halves: int, dim: int) -> list[Tensor]:
    return list(whole.chunk(halves, dim)) if halves > 1 else [whole]


def weights_of(products: Sequence[Product], transposed: bool) -> Tensor:
    """[experts, out, in], or [experts, in, out]."""
    whole = stacked([product.weight for product in products])
    return whole if products[0].turned == transposed else whole.transpose(1, 2)


def stacked(each: Sequence[Any]) -> Tensor:
    """What each expert has, one after another: where these are the entries of one tensor, that tensor."""
    owners = [one.args[0] for n, one in enumerate(each) if isinstance(one, Call) and entry(one) == n]
    if len(owners) == len(each) and len({source_of(owner) for owner in owners}) == 1:
        whole = result_of(owners[0])
        return whole if whole.shape[0] == len(each) else whole[: len(each)]
    return torch.stack([result_of(one) for one in each])


def entry(call: Call) -> int | None:
    at = call.args[1] if call.name == "getitem" else None
    return int(at) if isinstance(at, int) and not (isinstance(at, Expert) and at.listed) else None


def source_of(value: Any) -> object:
    """Equal for a tensor and for views, parts and casts of it that are made alike."""
    by_tensor = isinstance(value, Call) and any(isinstance(one, Tensor) for one in leaves(plain(value.args[1:])))
    if isinstance(value, Call) and value.name in VIEWED and not by_tensor and value.args:
        return source_of(value.args[0]), repr(plain(value.args[1:])), repr(plain(dict(value.kwargs)))
    return id(result_of(value))


