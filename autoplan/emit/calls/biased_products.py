"""Products that are written with their bias, as one operator."""

from collections import Counter
from collections.abc import Mapping, Sequence

from autoplan.ir.graph import Ref
from autoplan.ir.typed_program import Compute, LoweredBlock, Statement

BIASED = {"aten.linear.default": "aten.linear.default", "aten.matmul.default": "autoplan.affine"}
"""A product, and what computes it with a bias."""


def fused_biases(block: LoweredBlock) -> dict[str, str]:
    """add's name -> the product's, for each ``add(product(x, w), bias)`` of a block's body with a matrix and a vector
    that enter the block, and nothing in between: a row-parallel product's reduction is, so its bias is added once."""
    statements = block.body
    computes = {s.value.name: s for s in statements if isinstance(s, Compute)}
    readers = Counter(name for statement in statements for name in statement.reads)
    readers.update(value.name for value in block.outputs)
    entering = (*block.inputs, *block.externals, *block.parameters, *block.buffers)
    ranks = {value.name: len(value.local_shape) for value in entering}
    fused = {}
    for name, add in computes.items():
        if add.op != "aten.add.Tensor" or add.kwargs or not all(isinstance(a, Ref) for a in add.args):
            continue
        left, right = (a.name for a in add.args if isinstance(a, Ref))
        product = computes.get(left)
        if (
            product is not None and product.op in BIASED and not product.body and product.divisor == 1
            and ranks.get(product.reads[-1]) == 2 and ranks.get(right) == 1
            and readers[left] == 1 and add.value.type == product.value.type
        ):  # fmt: skip
            fused[name] = left
    return fused


def biased(add: Compute, statements: Sequence[Statement], fused: Mapping[str, str]) -> Compute:
    """The product and its bias as one operator, with the sum's name."""
    product = next(s for s in statements if s.value.name == fused[add.value.name])
    assert isinstance(product, Compute)
    return Compute(add.value, BIASED[product.op], (*product.args, add.args[1]), (), (), add.module)
