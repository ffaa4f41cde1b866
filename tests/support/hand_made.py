"""Graphs written by hand, as the trace would give them, for tests that need no tracing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoplan.ir.graph import Block, DType, Model, Node, Parameter, Ref, Segment, TensorType, Typed


def f32(*shape: int) -> TensorType:
    return TensorType(shape, "float32")


def i64(*shape: int) -> TensorType:
    return TensorType(shape, "int64")


def node(name: str, op: str, type: TensorType, *args: object, module: str = "", **kwargs: object) -> Node:
    """A node; strings among the arguments that begin with % are references."""

    def refer(value: object) -> object:
        if isinstance(value, str) and value.startswith("%"):
            return Ref(value[1:])
        return tuple(refer(v) for v in value) if isinstance(value, tuple) else value

    return Node(name, op, tuple(refer(a) for a in args), tuple((k, refer(v)) for k, v in kwargs.items()), type, module)


def chain(
    name: str,
    batch: tuple[Typed, ...],
    blocks: tuple[Block, ...],
    order: tuple[int, ...],
    constants: tuple[Node, ...] = (),
    counts: tuple[str, ...] = (),
    externals: dict[str, str] | None = None,
    tied: dict[str, str] | None = None,
) -> Model:
    """A model whose segments run the blocks in this order; a segment's parameters are "<position>.<local name>"."""
    segments, parameters = [], {}
    for position, index in enumerate(order):
        block = blocks[index]
        names = []
        for p in block.parameters:
            full = f"{position}.{p.name}"
            full = (tied or {}).get(full, full)
            parameters.setdefault(full, Parameter(full, p.type, full))
            names.append(full)
        outer = tuple((externals or {}).get(e.name, e.name) for e in block.externals)
        segments.append(Segment(index, str(position), tuple(names), (), outer))
    return Model(name, batch, tuple(parameters.values()), (), constants, counts, blocks, tuple(segments))


def sharing(model: Model, like: Mapping[int, int]) -> Model:
    """The same where segments read the parameters of others, by their places."""
    read = [model.segments[like.get(place, place)].parameters for place in range(len(model.segments))]
    segments = [replace(segment, parameters=names) for segment, names in zip(model.segments, read, strict=True)]
    kept = {name for names in read for name in names}
    return replace(
        model, segments=tuple(segments), parameters=tuple(p for p in model.parameters if p.name in kept)
    )


def mlp(batch: int = 32, width: int = 64, hidden: int = 256, layers: int = 4) -> Model:
    """``layers`` times linear -> relu -> linear, then a mean squared error."""
    x, h = f32(batch, width), f32(batch, hidden)
    layer = Block(
        "Layer",
        (Typed("x", x),),
        (),
        (
            Typed("up.weight", f32(hidden, width)),
            Typed("up.bias", f32(hidden)),
            Typed("down.weight", f32(width, hidden)),
        ),
        (),
        (
            node("up", "aten.linear.default", h, "%x", "%up.weight", module="layer.up"),
            node("up_bias", "aten.add.Tensor", h, "%up", "%up.bias", module="layer.up"),
            node("act", "aten.relu.default", h, "%up_bias", module="layer.act"),
            node("down", "aten.linear.default", x, "%act", "%down.weight", module="layer.down"),
            node("out", "aten.add.Tensor", x, "%x", "%down", module="layer"),
        ),
        ("out",),
    )
    loss = Block(
        "Loss",
        (Typed("x", x),),
        (Typed("y", x),),
        (),
        (),
        (
            node("difference", "aten.sub.Tensor", x, "%x", "%y"),
            node("square", "aten.pow.Tensor_Scalar", x, "%difference", 2),
            node("loss", "aten.mean.dim", f32(), "%square", (0, 1), False),
        ),
        ("loss",),
    )
    first = Block(
        "First",
        (),
        (Typed("inputs", x),),
        (Typed("weight", f32(width, width)),),
        (),
        (node("first", "aten.linear.default", x, "%inputs", "%weight", module="first"),),
        ("first",),
    )
    return chain(
        "MLP",
        (Typed("inputs", x), Typed("targets", x)),
        (first, layer, loss),
        (0, *([1] * layers), 2),
        externals={"inputs": "inputs", "y": "targets"},
    )


def llama(
    batch: int = 8, seq: int = 64, hidden: int = 64, ffn: int = 192, heads: int = 8, kv: int = 4, vocab: int = 512,
    layers: int = 4, tie: bool = False, dtype: str = "float32",
) -> Model:  # fmt: skip
    """A decoder with rotary embedding left out: embedding, ``layers`` blocks, head with its loss."""

    def t(*shape: int) -> TensorType:
        return TensorType(shape, dtype)

    d = hidden // heads
    x = t(batch, seq, hidden)
    ids = i64(batch, seq)
    embed = Block(
        "Embed", (), (Typed("ids", ids),), (Typed("weight", t(vocab, hidden)),), (),
        (node("embed", "aten.embedding.default", x, "%weight", "%ids", module="model.embed"),), ("embed",),
    )  # fmt: skip
    q, k = t(batch, seq, heads * d), t(batch, seq, kv * d)
    q4, k4 = t(batch, seq, heads, d), t(batch, seq, kv, d)
    qt, kt = t(batch, heads, seq, d), t(batch, kv, seq, d)
    wide = t(batch, seq, ffn)
    layer = Block(
        "Layer",
        (Typed("x", x),),
        (),
        (
            Typed("norm1", t(hidden)), Typed("q.weight", t(heads * d, hidden)), Typed("k.weight", t(kv * d, hidden)),
            Typed("v.weight", t(kv * d, hidden)), Typed("o.weight", t(hidden, heads * d)), Typed("norm2", t(hidden)),
            Typed("gate.weight", t(ffn, hidden)), Typed("up.weight", t(ffn, hidden)),
            Typed("down.weight", t(hidden, ffn)),
        ),
        (),
        (
            node("n1", "aten.rms_norm.default", x, "%x", (hidden,), "%norm1", 1e-5, module="norm1"),
            node("q", "aten.linear.default", q, "%n1", "%q.weight", module="attn.q"),
            node("q4", "aten.reshape.default", q4, "%q", (batch, seq, heads, d)),
            node("qt", "aten.transpose.int", qt, "%q4", 1, 2),
            node("k", "aten.linear.default", k, "%n1", "%k.weight", module="attn.k"),
            node("k4", "aten.reshape.default", k4, "%k", (batch, seq, kv, d)),
            node("kt", "aten.transpose.int", kt, "%k4", 1, 2),
            node("v", "aten.linear.default", k, "%n1", "%v.weight", module="attn.v"),
            node("v4", "aten.reshape.default", k4, "%v", (batch, seq, kv, d)),
            node("vt", "aten.transpose.int", kt, "%v4", 1, 2),
            node(
                "attn", "aten.scaled_dot_product_attention.default", qt, "%qt", "%kt", "%vt", None, 0.0, True,
                scale=None, enable_gqa=True, module="attn",
            ),
            node("at", "aten.transpose.int", q4, "%attn", 1, 2),
            node("a2", "aten.reshape.default", q, "%at", (batch, seq, heads * d)),
            node("o", "aten.linear.default", x, "%a2", "%o.weight", module="attn.o"),
            node("r1", "aten.add.Tensor", x, "%x", "%o"),
            node("n2", "aten.rms_norm.default", x, "%r1", (hidden,), "%norm2", 1e-5, module="norm2"),
            node("gate", "aten.linear.default", wide, "%n2", "%gate.weight", module="mlp.gate"),
            node("act", "aten.silu.default", wide, "%gate", module="mlp.act"),
            node("up", "aten.linear.default", wide, "%n2", "%up.weight", module="mlp.up"),
            node("prod", "aten.mul.Tensor", wide, "%act", "%up", module="mlp"),
            node("down", "aten.linear.default", x, "%prod", "%down.weight", module="mlp.down"),
            node("r2", "aten.add.Tensor", x, "%r1", "%down"),
        ),
        ("r2",),
    )  # fmt: skip
    head = Block(
        "Head",
        (Typed("x", x),),
        (Typed("labels", ids), Typed("count", i64())),
        (Typed("norm", t(hidden)), Typed("weight", t(vocab, hidden))),
        (),
        (
            node("n", "aten.rms_norm.default", x, "%x", (hidden,), "%norm", 1e-5, module="norm"),
            node("logits", "aten.linear.default", t(batch, seq, vocab), "%n", "%weight", module="lm_head"),
            node("logits32", "aten.to.dtype", f32(batch, seq, vocab), "%logits", DType("float32")),
            node("loss", "autoplan.cross_entropy", f32(), "%logits32", "%labels", "%count", -100, 0.0),
        ),
        ("loss",),
    )
    if dtype == "float32":
        loss = node("loss", "autoplan.cross_entropy", f32(), "%logits", "%labels", "%count", -100, 0.0)
        nodes = (*head.nodes[:2], loss)
        head = Block(head.name, head.inputs, head.externals, head.parameters, (), nodes, ("loss",))
    return chain(
        "Llama",
        (Typed("input_ids", ids), Typed("labels", ids)),
        (embed, layer, head),
        (0, *([1] * layers), 2),
        constants=(node("valid", "autoplan.count_valid", i64(), "%labels", -100),),
        counts=("valid",),
        externals={"ids": "input_ids", "labels": "labels", "count": "valid"},
        tied={f"{layers + 1}.weight": "0.weight"} if tie else None,
    )
