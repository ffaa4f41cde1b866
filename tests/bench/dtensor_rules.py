"""What DTensor does with an operator whose operands are placed in some way: the only reader of its private parts.

Asked of DTensor itself, by calling the operator on the tensors of one rank of a process group that sends nothing
("fake"), so that composite operators (linear, layer_norm) are followed through what they are made of. Private:

- ``ExplicitRedistributionContext`` is what tells a strategy that takes operands as they are from one that converts
  them first; torch exports no other way to learn it without reading a log.
- ``FakeStore``, which the public backend "fake" wants.
- the dispatcher's strategies, for operators that have a handler of their own (convolution, argmax): such handlers run
  whatever they are given, without the conversion that the chosen strategy asks for, or gather by themselves; and for
  fused attention, which torch has for CUDA alone, so that it can't be called here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy
from torch.distributed.tensor._utils import ExplicitRedistributionContext
from torch.testing._internal.distributed.fake_pg import FakeStore

from autoplan.ir.layout import P, R, S, State
from autoplan.rules.check.case import Case, arguments

PAVG, PMIN = State("P", reduce="avg"), State("P", reduce="min")
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention.default
ATTENTION_RESULTS = 9  # outputs of the fused operator, which stand before its operands in a strategy


@dataclass(frozen=True)
class Behaviour:
    """What comes of a call.

    kind    "runs": operands are taken as they are; "slices": an operand is converted first, without communication;
            "moves": it communicates; "none": there is no strategy; "fails": a strategy is taken, under which a rank's
            part of the operator is an error
    output  for the first two: how the (first) result is placed on each axis: a State's text, "mask" for a partial sum
            that needs a mask, "strided" for a shard of every n-th part
    """

    kind: str
    output: tuple[str, ...] = ()


@contextmanager
def silent_meshes() -> Iterator[tuple[DeviceMesh, DeviceMesh]]:
    """Two ranks, and two times two, none of which exists but this one."""
    if dist.is_initialized():  # another test's, in the same process
        dist.destroy_process_group()
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        yield DeviceMesh("cpu", torch.arange(2)), DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    finally:
        dist.destroy_process_group()


def placement_of(state: State) -> Placement:
    return Shard(state.dim) if state.kind == "S" else Replicate() if state.kind in "RI" else Partial(state.reduce)


def text_of(placement: Placement) -> str:
    """A State's text for a placement that is one."""
    if type(placement) is Replicate:
        return str(R)
    if type(placement) is Shard:
        return str(S(placement.dim))
    if type(placement) is Partial:
        return text_of_state(State("P", reduce=str(placement.reduce_op)))
    special = {"_MaskPartial": "mask", "_NormPartial": "P(norm)", "_StridedShard": "strided"}
    return special[type(placement).__name__]


def text_of_state(state: State) -> str:
    """As ``str``, and told apart by whatever reduction a partial state has."""
    return f"P({state.reduce})" if state.kind == "P" and state != P else str(state)


def placed(whole: Tensor, states: Sequence[State], mesh: DeviceMesh) -> DTensor:
    """The first rank's part; every other rank's is taken for granted."""
    local = whole.detach()
    for axis, state in enumerate(states):
        if state.kind == "S":
            local = local.chunk(mesh.size(axis), state.dim)[0]
    places = [placement_of(state) for state in states]
    return DTensor.from_local(
        local.contiguous(), mesh, places, run_check=False, shape=whole.shape, stride=whole.contiguous().stride()
    )


def behaviour(case: Case, operands: Sequence[Sequence[State]], mesh: DeviceMesh) -> Behaviour:
    """What DTensor does where each operand is in these states, one for each axis of the mesh."""
    if case.node.op.startswith("aten.scaled_dot_product_attention"):
        return attention_behaviour(case, operands, mesh)
    strict = called(case, operands, mesh, strict=True)
    return called(case, operands, mesh, strict=False) if strict.kind == "moves" else strict


def called(case: Case, operands: Sequence[Sequence[State]], mesh: DeviceMesh, strict: bool) -> Behaviour:
    tensors = [placed(t, states, mesh) for t, states in zip(case.tensors, operands, strict=True)]
    args, kwargs = arguments(case.node, tensors)
    overload = overload_of(case)
    try:
        if overload in DTensor._op_dispatcher._custom_op_handlers:
            return strategy_taken(overload, args, kwargs)
        with ExplicitRedistributionContext(strict=strict), torch.no_grad():
            result = overload(*args, **kwargs)
    except NotImplementedError:
        return Behaviour("none")
    except (RuntimeError, AssertionError, IndexError, ValueError) as error:
        return Behaviour(kind_of(str(error)))
    first = result[0] if isinstance(result, tuple | list) else result
    return Behaviour("runs" if strict else "slices", tuple(text_of(p) for p in first.placements))


def kind_of(said: str) -> str:
    if "Implicit redistribution" in said:
        return "moves"
    return "none" if "does not have a sharding strategy" in said or "got mixed torch.Tensor" in said else "fails"


def overload_of(case: Case) -> OpOverload:
    _, name, overload = case.node.op.split(".", 2)
    return getattr(getattr(torch.ops.aten, name), overload)


def strategy_taken(overload: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> Behaviour:
    """What the operator's strategies say, whatever its handler would do."""
    dispatcher = DTensor._op_dispatcher
    info = dispatcher.unwrap_to_op_info(overload, tuple(args), dict(kwargs))
    dispatcher.sharding_propagator.propagate(info)
    if info.output_sharding.needs_redistribute:
        return Behaviour("moves")
    return Behaviour("runs", tuple(text_of(p) for p in info.output_sharding.output_spec.placements))


def attention_behaviour(case: Case, operands: Sequence[Sequence[State]], mesh: DeviceMesh) -> Behaviour:
    """By the strategies registered for fused attention, which has queries, keys and values alone."""
    heads = {t.shape[-3] for t in case.tensors if t.dim() == 4}
    if len(case.tensors) != 3 or len(heads) != 1:
        return Behaviour("none")
    specs = []
    for t, states in zip(case.tensors, operands, strict=True):
        meta = TensorMeta(t.shape, t.stride(), t.dtype)
        specs.append(DTensorSpec(mesh, tuple(placement_of(s) for s in states), meta))
    schema = OpSchema(ATTENTION, tuple(OpStrategy([OpSpec(spec)]) for spec in specs), {})
    strategies = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs[ATTENTION](schema).strategies
    wanted = [spec.placements for spec in specs]
    for strategy in strategies:
        if [spec.placements for spec in strategy.input_specs] == wanted:
            return Behaviour("runs", tuple(text_of(p) for p in strategy.output_specs[0].placements))
    return Behaviour("moves")
