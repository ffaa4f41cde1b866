"""Why our rules and DTensor's disagree where they do: one explanation for each class of disagreements.

What ours take and DTensor doesn't is proven by tests/rules/test_rules.py, so a few classes tell what it is. What
DTensor takes and ours don't is either left out for a reason or wrong: each explanation of that names the operators that
it is about or the state that only DTensor has, and covers nothing else, so that a new one stays unexplained until
somebody has thought about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autoplan.ir.layout import P
from tests.bench.rules_compared import Way, neutral

UNREAD = ("new_full", "new_zeros", "new_ones", "full_like", "zeros_like", "ones_like")
WEIGHTED = ("rms_norm", "layer_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits")


@dataclass(frozen=True)
class Explanation:
    """One class of disagreements.

    who     "ours" where only we take operands so, "DTensor's" where only it does, "both" where results differ
    covers  whether a disagreement is of this class
    """

    name: str
    who: str
    text: str
    covers: Callable[[Way], bool]


def called(way: Way, *names: str) -> bool:
    return way.case.node.op.split(".")[1] in names


def gives(way: Way, *outputs: str) -> bool:
    """Whether DTensor takes the operands for one of these results."""
    return way.theirs.kind == "runs" and way.theirs.output[0] in outputs


def ours_alone(way: Way) -> bool:
    return bool(way.ours) and way.theirs.kind != "runs"


def theirs_alone(way: Way) -> bool:
    return not way.ours and way.theirs.kind == "runs"


def by_body(way: Way) -> bool:
    """Whether a function of ours that knows its rank is what takes them."""
    inputs = tuple(states[0] for states in way.inputs)
    return any(s.body and tuple(map(neutral, s.inputs)) == inputs for s in way.case.rule.extra)


def of_extremes(way: Way) -> bool:
    return bool(way.kinds & {"P(max)", "P(min)"}) or gives(way, "P(max)", "P(min)")


EXPLANATIONS = (
    Explanation(
        "averages",
        "DTensor's",
        "DTensor has a state P(avg) for summands of a mean. Ours divide each rank's mean by the number of ranks, which "
        "leaves a plain partial sum: one partial state is enough, and its dual is R. The same dims are split.",
        lambda way: "P(avg)" in way.kinds or gives(way, "P(avg)"),
    ),
    Explanation(
        "maxima and minima",
        "DTensor's",
        "Operands of a maximum or minimum pass through operators that keep their order. A rank doesn't know whether "
        "its operand won, so no gradient could pass: with gradients it would be wrong, and what needs none (the "
        "greatest logit of a softmax) is inside a body of ours. Ours have P(max) out of amax alone, where nothing "
        "carries a gradient.",
        lambda way: theirs_alone(way) and of_extremes(way),
    ),
    Explanation(
        "products and truth values",
        "DTensor's",
        "any, all and prod over a split dim are partial in DTensor, as sums or products. Truth values decide about "
        "masks and carry no gradient; a product's gradient needs the other ranks' factors. Ours read the dim whole.",
        lambda way: called(way, "any", "all", "prod") and theirs_alone(way) and gives(way, "P", "P(product)"),
    ),
    Explanation(
        "norms",
        "DTensor's",
        "A vector norm over a split dim is partial in DTensor, to be reduced by the norm of the parts' norms. Its "
        "gradient needs the whole norm. Models write a norm as a sum of squares, which splits.",
        lambda way: called(way, "linalg_vector_norm") and theirs_alone(way) and gives(way, "P(norm)"),
    ),
    Explanation(
        "counts of boundaries",
        "DTensor's",
        "bucketize counts the boundaries below a value, so that split boundaries give summands of the count. "
        "Boundaries are few; ours read them whole.",
        lambda way: called(way, "bucketize", "searchsorted") and theirs_alone(way) and gives(way, "P"),
    ),
    Explanation(
        "not read",
        "DTensor's",
        "The operand gives a type or a shape, its values aren't read, so that any placement would do. Ours ask for the "
        "one that the shape needs.",
        lambda way: called(way, *UNREAD) and theirs_alone(way),
    ),
    Explanation(
        "fewer indices",
        "DTensor's",
        "gather splits a dim in which there are fewer indices than entries as if both were of one size: a rank's "
        "indices then meet other entries, and the values are wrong. Ours keep such a dim whole.",
        lambda way: called(way, "gather") and theirs_alone(way) and "P" not in way.kinds,
    ),
    Explanation(
        "strided shards",
        "DTensor's",
        "Merging dims of which an inner one is split gives a shard of every n-th part, for which DTensor has a "
        "private placement that checkpoints can't save. Ours split the outermost factor of a merged dim alone.",
        lambda way: gives(way, "strided"),
    ),
    Explanation(
        "a partial weight",
        "DTensor's",
        "A norm and a loss are linear in their weight, so a partial weight would pass. Weights never come as "
        "summands, and every way more is a variable more for each norm; ours leave it out.",
        lambda way: called(way, *WEIGHTED) and theirs_alone(way) and "P" in way.kinds,
    ),
    Explanation(
        "the masked partial of a vocabulary",
        "both",
        "With the vocabulary split both look up what a rank has. DTensor's result is a partial sum together with the "
        "mask of what was found, and its reduction zeroes the rest; ours zeroes at once and is a plain partial sum.",
        lambda way: way.theirs.output == ("mask",) and way.ours == ((P,),),
    ),
    Explanation(
        "attention",
        "ours",
        "DTensor has strategies for fused attention alone (batch, heads, everything whole), with as many heads of keys "
        "as of queries, and masks in one variant. Ours split the rows of the queries too, causal or not, groups of "
        "heads, keys and values that go round, and the mask with whatever it is split by.",
        lambda way: called(way, "scaled_dot_product_attention") and ours_alone(way),
    ),
    Explanation(
        "functions that know their rank",
        "ours",
        "Where what a rank does depends on its place, a function of ours runs in the operator's stead: it exchanges "
        "the borders of images (convolution, pooling), carries a scan over the ranks, looks up what a rank has. "
        "DTensor makes the dim whole.",
        lambda way: ours_alone(way) and by_body(way),
    ),
    Explanation(
        "no strategy",
        "ours",
        "DTensor has no strategy for the operator.",
        lambda way: way.theirs.kind == "none",
    ),
    Explanation(
        "partial sums",
        "ours",
        "Operators that are linear in an operand, or in several together, take summands for summands: choices (where, "
        "masked_fill), look-ups (gather, embedding), batched products, cumsum, padding, means. DTensor knows it of "
        "some (add, mul, mm) and makes the operands of the others whole first, an all-reduce.",
        lambda way: ours_alone(way) and any(states[0] == P for states in way.ours) and "P" in way.kinds,
    ),
    Explanation(
        "convolution",
        "ours",
        "DTensor's strategies for a convolution split the batch. Ours split output channels, groups, and input "
        "channels into a partial sum besides. (Its handler runs other placements too, and places the result as if "
        "they were what a strategy asks for: values are then wrong without a word.)",
        lambda way: called(way, "convolution") and ours_alone(way),
    ),
    Explanation(
        "kept whole",
        "ours",
        "DTensor keeps dims whole along which nothing meets: the groups of a group norm, windows of a pooling that "
        "don't overlap, rows beside a padded dim, matrices of a batch whose triangle or diagonal is taken, a batch "
        "that one of a product's operands lacks.",
        lambda way: ours_alone(way) and way.theirs.kind in ("moves", "slices") and "P" not in way.kinds,
    ),
)


def explanation_of(way: Way) -> Explanation | None:
    """The first that covers a disagreement on one axis."""
    assert not way.agree
    return next((e for e in EXPLANATIONS if e.covers(way)), None)


def split_twice(way: Way) -> bool:
    """Why a product of two ways that both take may be taken by ours alone: a linear layer merges its leading dims and
    parts them again, and DTensor's private strided placement of the merged dim, where both axes split an inner one of
    them, isn't undone: "Cannot unflatten tensor with _StridedShard placement"."""
    first = way.inputs[0]
    inner = first[0].kind == "S" and 0 < first[0].dim < len(way.case.tensors[0].shape) - 1
    return called(way, "linear") and inner and len(set(first)) == 1 and bool(way.ours) and way.theirs.kind == "fails"
