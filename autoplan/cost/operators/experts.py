"""A mixture's experts on one device: grouped products over the tokens that each expert gets, and the tokens' way there.

Tokens are taken to choose their experts evenly and each for itself: of tokens · k choices each of E experts gets
tokens · k / E rows on average. So a split of the experts divides the products and leaves each in its shape, a split of
the inner dim makes each narrower. Where ranks have different experts all wait for the rank that got most (``busiest``),
in its products and in what it receives. A router may limit a token's choices to some of several groups of experts,
which lie together (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2): its groups are taken to be chosen likewise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from autoplan.ir.graph import DTYPE_BYTES, Block, Node
from autoplan.ops.experts.activation import Counts
from cost_models.compute import matmul_flops, matmul_seconds, memory_bound_seconds
from cost_models.hardware import Device

CHOICE = "autoplan.top_indices"
INDEX_BYTES, COUNT_BYTES = 4, 16  # of an index as it is sent, and of a member's two counts
PLACE_BYTES = 8  # of a token's or a choice's number
PASSES, ADDING = 4, 3  # over a message, written and read at either end; over rows that are added up


def busiest(mean: float, ranks: int) -> float:
    """What the rank with most of it gets where choices fall on ranks evenly and independently: m + √(2 m ln n), m being
    the mean (Raab and Steger 1998, "Balls into bins", theorem 1, for many balls)."""
    return mean + math.sqrt(2 * mean * math.log(ranks))


def share_reached(experts: int, here: int, choices: int) -> float:
    """How likely it is that of a token's distinct ``choices`` among all experts one is among the ``here`` of a rank."""
    return 1 - math.comb(experts - here, choices) / math.comb(experts, choices)


@dataclass(frozen=True)
class Groups:
    """A router's limit: of ``count`` groups of experts, each next to one another, a token chooses within ``kept``."""

    count: int = 1
    kept: int = 1

    def share_reached(self, experts: int, here: int, choices: int) -> float:
        """How likely it is, on average over ranks with ``here`` experts each, that one of them is chosen: the number of
        a rank's groups that are kept is hypergeometric, and choices are among the experts of all kept groups."""
        size = experts // self.count
        starts = Counter(overlaps(start, here, size) for start in range(0, size, math.gcd(here, size)))
        mean = 0.0
        for held, times in starts.items():
            for numbers in product(*(range(have + 1) for _, have in held)):
                rest = self.count - sum(have for _, have in held), self.kept - sum(numbers)
                ways = math.comb(*rest) if rest[1] >= 0 else 0
                ways *= math.prod(math.comb(have, n) for (_, have), n in zip(held, numbers, strict=True))
                chosen = sum(each * n for (each, _), n in zip(held, numbers, strict=True))
                likely = ways / math.comb(self.count, self.kept)
                mean += times * likely * (share_reached(self.kept * size, chosen, choices) if likely else 0.0)
        return mean / starts.total()


NO_LIMIT = Groups()


def overlaps(start: int, here: int, size: int) -> tuple[tuple[int, int], ...]:
    """(experts of a group, how many groups have as many) of a rank that starts so far into a group of ``size``."""
    ends = (min(start + here, first + size) - max(start, first) for first in range(0, start + here, size))
    return tuple(sorted(Counter(ends).items()))


def groups_of(block: Block, node: Node) -> Groups:
    """The limit of the router whose choices a mixture's ``index`` is: some of the groups, chosen first, are scattered
    over a mask of all, which is among what the experts are chosen by."""
    made = {each.name: each for each in block.nodes}
    experts, choices = block.types()[node.operands[3]].shape[0], block.types()[node.operands[1]].shape[-1]
    for mask in ancestors(made, node.operands[1]):
        chosen = [made[name] for name in mask.operands if name in made and made[name].op == CHOICE]
        if mask.op.startswith("aten.scatter.") and len(chosen) == 1:
            count, kept = mask.type.shape[-1], chosen[0].type.shape[-1]
            if experts % count == 0 and kept < count < experts and kept * experts // count >= choices:
                return Groups(count, kept)
    return NO_LIMIT


def ancestors(made: Mapping[str, Node], name: str) -> Iterator[Node]:
    """The nodes that a value is computed from, the nearest first."""
    found = dict.fromkeys([name])
    queue = [name]
    for each in queue:
        if each in made:
            yield made[each]
            queue += [n for n in made[each].operands if n not in found]
            found |= dict.fromkeys(made[each].operands)


@dataclass(frozen=True)
class Travel:
    """Tokens sent to the ranks that have their experts, each once to each such rank, and one row of results back.

    tokens       that each rank has
    ways         ranks, each with as many of the experts
    hidden, out  width of a token and of a result, of ``itemsize`` bytes an element
    groups       that the router limits a token's choices to
    capacity     of an expert, as a multiple of an even share of the choices
    sent         rows to each rank, where capacity says how many: all are sent, none is counted; else 0
    chunks       into how many the tokens are cut, each sent by itself
    """

    tokens: float
    ways: int
    experts: int
    choices: int
    hidden: int
    out: int
    itemsize: int
    score_bytes: int
    groups: Groups = NO_LIMIT
    capacity: float = math.inf
    sent: int = 0
    chunks: int = 1

    @property
    def mean_rows(self) -> float:
        """That a rank receives in one direction on average, its own among them; empty ones, too."""
        if self.sent:
            return self.sent * self.ways
        reached = self.groups.share_reached(self.experts, self.experts // self.ways, self.choices)
        return min(self.tokens * self.ways * reached, self.most)

    @property
    def most(self) -> float:
        """That its experts' capacity lets a rank receive."""
        return self.tokens * self.choices * self.capacity

    @property
    def rows(self) -> float:
        """That the busiest rank receives."""
        if self.sent:
            return self.mean_rows
        return min(self.tokens * self.ways, busiest(self.mean_rows, self.ways), self.most)

    @property
    def imbalance(self) -> float:
        """By how much of the mean the busiest rank is above it."""
        return self.rows / self.mean_rows - 1

    @property
    def counts_bytes(self) -> int:
        return 0 if self.sent else COUNT_BYTES * self.ways * self.chunks

    @property
    def there_bytes(self) -> int:
        """Tokens with their indices and scores."""
        return round(self.rows * (self.hidden * self.itemsize + self.choices * (INDEX_BYTES + self.score_bytes)))

    @property
    def result_bytes(self) -> int:
        return round(self.rows * self.out * self.itemsize)

    @property
    def gradient_bytes(self) -> int:
        """Of tokens and of scores."""
        return round(self.rows * (self.hidden * self.itemsize + self.choices * self.score_bytes))

    def forward_s(self, device: Device) -> float:
        """Messages written and read, results added up."""
        return float(memory_bound_seconds(PASSES * self.there_bytes + ADDING * self.result_bytes, device))

    def backward_s(self, device: Device) -> float:
        return float(memory_bound_seconds(PASSES * self.result_bytes + ADDING * self.gradient_bytes, device))

    def zeros_s(self, device: Device) -> float:
        """Of the zeros to which a rank's results are added."""
        return float(memory_bound_seconds(self.tokens * self.out * self.itemsize, device))

    def again_s(self, device: Device) -> float:
        """Of tokens that are sent again for the backward."""
        return float(memory_bound_seconds(PASSES * self.there_bytes, device))

    @property
    def kept_bytes(self) -> int:
        """What arrived, and which tokens went."""
        return self.there_bytes + round(PLACE_BYTES * self.mean_rows)


@dataclass(frozen=True)
class Grouped:
    """The experts of one rank.

    experts  how many it has
    rows     choices of tokens that each gets, at least 1
    hidden, inner, out  width of a token, of what runs between the products, of the result
    first    products before the activation: 2 with a gate, 0 where it is of the tokens, and inner is their width
    activation  what its operators make and read
    chunks   into which the rows are cut, one computed after the other
    tokens   that the rows are of, by which they are added up
    choices  of each token
    score_bytes  of an element of the scores, where they may be wider than tokens
    """

    experts: float
    rows: float
    hidden: int
    inner: int
    out: int
    first: int
    activation: Counts
    chunks: int = 1
    tokens: float = 0.0
    choices: int = 1
    score_bytes: int = 0

    @property
    def chunk(self) -> Grouped:
        """The products of one."""
        rows, tokens = max(1.0, self.rows / self.chunks), self.tokens / self.chunks
        return replace(self, rows=rows, tokens=tokens, chunks=1)

    @staticmethod
    def of(
        chosen: float, here: int, hidden: int, inner: int, out: int, first: int, activation: Counts
    ) -> Grouped:
        """``here`` experts that are ``chosen`` so often together. Where that is less often than once each, as many
        experts have one row each."""
        busy = min(float(here), max(1.0, chosen))
        return Grouped(busy, max(1.0, chosen / busy), hidden, inner, out, first, activation)

    def of_tokens(self, tokens: float, choices: int, score_bytes: int, travel: Travel | None = None) -> Grouped:
        """With what follows from the tokens that these experts see. Where none travels, rows of choices that name
        other ranks' experts are moved as well; they aren't counted."""
        found = replace(self, tokens=tokens, choices=choices, score_bytes=score_bytes)
        return found if travel is None else replace(found, tokens=travel.rows, chunks=travel.chunks)

    @property
    def flops(self) -> float:
        """Of the products forward."""
        first = self.first * float(matmul_flops(self.rows, self.inner, self.hidden, self.experts))
        return first + float(matmul_flops(self.rows, self.out, self.inner, self.experts))

    def forward_s(self, dtype: str, device: Device) -> float:
        if self.chunks > 1:
            return self.chunks * self.chunk.forward_s(dtype, device)
        products_s = self.first * self.product_s(self.inner, self.hidden, dtype, device)
        products_s += self.product_s(self.out, self.inner, dtype, device)
        return products_s + streamed_s(self.passes(DTYPE_BYTES[dtype]), device)

    def passes(self, itemsize: int) -> tuple[float, ...]:
        """Bytes that a forward moves beside its products: rows gathered; the activation; results scaled, in the wider
        dtype, added up by token, and cast."""
        wide, cast = max(itemsize, self.score_bytes), self.score_bytes > itemsize
        rows, activated = self.rows * self.experts, (self.activation.calls + self.activation.read) * self.inner
        row = (2 * self.hidden * itemsize, activated * itemsize, (itemsize + wide) * self.out)
        added = (rows + self.sum_passes * self.tokens) * wide * self.out
        return (*(rows * each for each in row), added, cast * self.tokens * (wide + itemsize) * self.out)

    @property
    def sum_passes(self) -> int:
        """Over the sums of rows by token (``Routed.totals``): of two choices zeros, to which rows are added in place;
        of more each sum is written once."""
        return 3 if self.choices <= 2 else 1

    def backward_s(self, dtype: str, device: Device) -> float:
        """For each product the gradients of both operands, and ``passes_back``. Of chunks, their weights'
        gradients are added up."""
        if self.chunks > 1:
            weights_bytes = DTYPE_BYTES[dtype] * self.weight_elements
            added_s = (self.chunks - 1) * float(memory_bound_seconds(3 * weights_bytes, device))
            return self.chunks * self.chunk.backward_s(dtype, device) + added_s
        products_s, rows, experts = self.weights_s(dtype, device), self.rows, self.experts
        for count, wide, deep in self.products:
            products_s += count * float(matmul_seconds(rows, deep, wide, experts, dtype, device))
        return products_s + streamed_s(self.passes_back(DTYPE_BYTES[dtype]), device)

    def passes_back(self, itemsize: int) -> tuple[float, ...]:
        """Bytes that a backward moves beside its products: rows gathered, of tokens and of the result's gradient, and
        that scaled; what isn't kept of the activation, and its gradient, for each operand from two tensors; the scores'
        gradient, of what the experts gave; the tokens', of each first product, added up over these, and by token."""
        activated = (self.activation.redone + 3 * self.activation.read) * self.inner
        row = (
            2 * self.hidden, 2 * self.out, 2 * self.out, activated, 4 * self.out,
            3 * max(0, self.first - 1) * self.hidden,
        )  # fmt: skip
        rows = self.rows * self.experts
        added = (rows + self.sum_passes * self.tokens) * self.hidden
        return tuple(itemsize * each for each in (*(rows * each for each in row), added))

    @property
    def products(self) -> tuple[tuple[int, int, int], ...]:
        """(how many, width of the result, of the operand), before the activation and after it."""
        return (self.first, self.inner, self.hidden), (1, self.out, self.inner)

    def weights_s(self, dtype: str, device: Device) -> float:
        """Of a chunk's backward, the weights' gradients: no other rank waits for these."""
        each = self.chunk
        return sum(
            count * float(matmul_seconds(wide, deep, each.rows, each.experts, dtype, device))
            for count, wide, deep in self.products
        )

    @property
    def weight_elements(self) -> float:
        return self.experts * sum(count * wide * deep for count, wide, deep in self.products)

    def again_s(self, dtype: str, device: Device) -> float:
        """Of the first products where the backward computes them again."""
        if self.chunks > 1:
            return self.chunks * self.chunk.again_s(dtype, device)
        return self.first * self.product_s(self.inner, self.hidden, dtype, device)

    def activated_again_s(self, dtype: str, device: Device) -> float:
        """Of what is kept of the activation where the backward computes it again."""
        passes = self.activation.calls + self.activation.read - self.activation.redone
        return streamed_s([self.rows * self.experts * passes * self.inner * DTYPE_BYTES[dtype]], device)

    def activated_bytes(self, itemsize: int) -> float:
        """What is kept of the activation."""
        return self.rows * self.experts * self.activation.kept * self.inner * itemsize

    def kept_bytes(self, itemsize: int, score_bytes: int) -> float:
        """Beside that the first products, what the experts give, each row's score, and where it came from."""
        each = (max(1, self.first) * self.inner + self.out) * itemsize + score_bytes + 2 * PLACE_BYTES
        return self.rows * self.experts * each

    def rebuilt_bytes(self, itemsize: int, score_bytes: int) -> float:
        """Of one chunk what stands in a backward that computes again what wasn't kept: not what the experts gave, but
        the gradient of what gave it, without the scores."""
        each = (max(1, self.first) + 1) * self.inner * itemsize + score_bytes + 2 * PLACE_BYTES
        return self.rows * self.experts / self.chunks * each

    def passing_bytes(self, itemsize: int, wide: int, tokens: float = 0.0) -> tuple[float, float, float]:
        """What stands for a moment beside what is kept: in the forward; in the backward before it has weights'
        gradients; and beside these. Of chunks one stands at a time.

        The backward has tokens, the result's gradient and that scaled; then of the inner width the activation's
        gradient, those of its calls' results that aren't kept, and a gradient for each operand, of which one for each
        first product stays while the tokens' are multiplied, and added up by token.

        wide    bytes of an element of what is scaled by scores
        tokens  that arrived, in one chunk: sums of their rows stand here
        """
        each = self.rows * self.experts / self.chunks * itemsize
        made = (self.activation.calls - self.activation.kept) * self.inner
        inner, rest = made + (1 + self.activation.read) * self.inner, max(1, self.first) * self.inner
        scaled = (each / itemsize + tokens) * wide * self.out
        forward = max(each * self.hidden, each * made, scaled)
        summed = (max(2 * each, each + tokens * itemsize) if self.first else tokens * itemsize) * self.hidden
        before = each * (self.hidden + 2 * self.out) + max(each * inner, each * rest + max(summed, each * self.out))
        return forward, before, each * (self.hidden + self.out + rest)

    def product_s(self, wide: int, deep: int, dtype: str, device: Device) -> float:
        return float(matmul_seconds(self.rows, wide, deep, self.experts, dtype, device))


def streamed_s(sizes: Iterable[float], device: Device) -> float:
    """Seconds of passes over so many bytes each."""
    return sum(float(memory_bound_seconds(size, device)) for size in sizes)
