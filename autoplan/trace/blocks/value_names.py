"""Names that read well, for values inside a block and for blocks."""

import builtins
import keyword
import re
from collections.abc import Iterable

from autoplan.ir.graph import Node, free_name
from autoplan.trace.blocks.cut import Piece
from autoplan.trace.blocks.flat import Tree

NAMED_AFTER_MODULE = frozenset({
    "aten.linear.default", "aten.matmul.default", "aten.convolution.default", "aten.embedding.default",
    "aten.layer_norm.default", "aten.rms_norm.default", "autoplan.batch_norm",
})  # fmt: skip
STEMS = {
    "aten.scaled_dot_product_attention.default": "attention", "autoplan.cross_entropy": "loss",
    "autoplan.weighted_cross_entropy": "loss", "autoplan.count_classes": "valid_targets",
    "autoplan.count_valid": "valid_targets", "aten.slice.Tensor": "part", "aten.sum.dim_IntList": "total",
    "aten.sum.default": "total", "aten.pow.Tensor_Scalar": "power", "aten.to.dtype": "cast",
    "aten.convolution.default": "conv", "aten.constant_pad_nd.default": "padded", "aten.select.int": "picked",
    "aten.bitwise_and.Tensor": "both", "aten.bitwise_or.Tensor": "either", "autoplan.read_buffer": "before",
    "autoplan.update_buffer": "updated",
}  # fmt: skip
VIEWS = frozenset({
    "aten.unsqueeze.default", "aten.reshape.default", "aten.expand.default", "aten.to.dtype", "aten.transpose.int",
    "aten.slice.Tensor", "aten.squeeze.dim", "aten.permute.default",
})  # fmt: skip
RESERVED = frozenset(dir(builtins)) | {"self", "torch", "F", "nn"}
LONGEST = 3  # names that a glue block's own name is made of


def stem(node: Node, parameters: frozenset[str]) -> str:
    """What a node is called: a contraction, a norm and a bias' addition after their module, others after the op."""
    last = node.module.rpartition(".")[2]
    adds_bias = node.op == "aten.add.Tensor" and node.operands[-1] in parameters
    if (node.op in NAMED_AFTER_MODULE or adds_bias) and usable(last):
        return last
    return spelled(node.op)


def spelled(op: str) -> str:
    name = STEMS.get(op, op.split(".")[1].strip("_"))
    return name if usable(name) else f"{name}_value"


def usable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in RESERVED


def unique(stem: str, taken: set[str], first: int = 1, between: str = "_") -> str:
    """The stem, or the stem with the first free number; it is taken from then on."""
    name = free_name(stem, taken, first, between)
    taken.add(name)
    return name


def constant_names(nodes: Iterable[Node], taken: set[str]) -> dict[str, str]:
    """Constants are called after what they are views of: ``cos``, ``cos_1``."""
    names: dict[str, str] = {}
    stems: dict[str, str] = {}
    for node in nodes:
        source = node.operands[0] if node.op in VIEWS else ""
        stems[node.name] = stems.get(source, spelled(node.op))
        names[node.name] = unique(stems[node.name], taken)
    return names


def block_name(piece: Piece, tree: Tree, parameters: frozenset[str]) -> str:
    """The class of the module that the piece is, or a name made of the modules that read parameters."""
    read = {name for node in piece.nodes for name in node.operands if name in parameters}
    whole = piece.path or common([owner(name) for name in read])
    if whole and whole not in tree.builtin and tree.owned.get(whole) == {plain(name) for name in read}:
        return tree.classes[whole]
    words = [word for node in piece.nodes if (word := module_word(node, tree, read))]
    return "".join(map(camel, list(dict.fromkeys(words))[:LONGEST])) or "Block"


def module_word(node: Node, tree: Tree, read: set[str]) -> str:
    """What a module is called in a block's name: its class where it is just a number in a list, "" for one that has
    no parameters otherwise."""
    last = node.module.rpartition(".")[2]
    if last.isdigit():
        return tree.classes.get(node.module, "")
    return last if read.intersection(node.operands) else ""


def plain(name: str) -> str:
    """A parameter's own name, for that of a piece of it."""
    return name.partition("[")[0]


def owner(name: str) -> str:
    return plain(name).rpartition(".")[0]


def common(paths: list[str]) -> str:
    """The innermost module that all paths lie in."""
    shared = []
    for names in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def camel(word: str) -> str:
    """embed_tokens -> EmbedTokens"""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W|_", word))
