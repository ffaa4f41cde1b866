"""Where a program's training starts from: values that came with the plan, or values drawn anew under a seed."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from autoplan.errors import WeightsError
from autoplan.ir.start import RESETS, Start
from autoplan.runtime.collectives.objects import from_all, together
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.weights.loading import draw, load, makes, own_parameters
from autoplan.runtime.weights.start_values import check_values

SEED = 0  # where none is given and none was kept
GIVE_WEIGHTS = "load_weights(safetensors or a state dict), which is train.py's --weights"
GIVE_FACTORY = "plan the function that makes the model: autoplan.parallelize(make_model, ...)"


def initialise(
    spec: ProgramSpec, seed: int | None, reset_parameters: bool, held: Sequence[ShardedParameter],
    buffers: Mapping[str, Tensor], unread: Mapping[str, Tensor],
) -> None:  # fmt: skip
    """See ``RankModel.init_weights``; every rank calls it.

    unread  likewise filled, where the recipe makes it or the values have it
    """
    together(lambda: check_asked(spec, seed, reset_parameters))
    check_alike((seed, reset_parameters))
    if not reset_parameters and from_values(spec.start, seed):
        assert spec.values is not None
        together(lambda: check_values(spec.start, spec.values or Path(), *own_share()))
        load(spec, held, buffers, spec.values, unread, tell=bool(spec.start.folder))
        return
    assert spec.init is not None
    draw(spec.init, SEED if seed is None else seed, held, {**buffers, **unread})


def from_values(start: Start, seed: int | None) -> bool:
    """Whether the values that came with the plan are meant: no seed was given, or theirs where there is no recipe."""
    return start.stored and (seed is None or (seed == start.seed and not start.repeats))


def check_asked(spec: ProgramSpec, seed: int | None, reset_parameters: bool) -> None:
    """WeightsError where that can't be had: a function of plan and arguments, so on every rank alike."""
    start = spec.start
    if reset_parameters:
        check_resets(spec)
    elif from_values(start, seed):
        if spec.values is None:
            raise WeightsError("init_weights()", "this program wasn't loaded from a folder with values", GIVE_WEIGHTS)
    elif start.stored and not start.repeats:
        raise no_seed(start, seed)
    else:
        check_known(spec, f"init_weights({'' if seed is None else f'seed={seed}'})")


def no_seed(start: Start, seed: int | None) -> WeightsError:
    """Of a plan that comes with values and can draw no others."""
    asked, remedy = f"init_weights(seed={seed})", "call init_weights() for its values, or "
    if start.seed is None:
        why = f" ({start.why})" if start.why else ""
        said = f"the model came with values of its own, and nothing is known of how others are drawn{why}"
        return WeightsError(asked, said, f"{remedy}{GIVE_FACTORY}")
    said = f"{start.name} ran once, under seed {start.seed}, and can't be repeated: {start.why}"
    return WeightsError(asked, said, f"{remedy}have it draw from torch's own generator, and plan again")


def check_known(spec: ProgramSpec, asked: str) -> None:
    """WeightsError where the values of anything that the program reads can't be drawn as the model's author does."""
    if not spec.start.repeats:
        raise WeightsError(asked, must_be_given(spec.start), f"call {GIVE_WEIGHTS}, or {GIVE_FACTORY}")
    lacking = not_made(spec)
    if lacking:
        raise WeightsError(lacking[0], "its recipe doesn't make it", f"call {GIVE_WEIGHTS}")


def check_resets(spec: ProgramSpec) -> None:
    """WeightsError where the plan has no record of reset_parameters, or where that doesn't fill everything."""
    if spec.start.recipe != RESETS:
        said = "the plan knows better: it has recorded what makes the model" if spec.start.recipe else "it has none"
        raise WeightsError("init_weights(reset_parameters=True)", said, "leave reset_parameters out")
    lacking = not_made(spec)
    if lacking:
        raise WeightsError(lacking[0], "no reset_parameters fills it", f"call {GIVE_WEIGHTS}, or {GIVE_FACTORY}")


def not_made(spec: ProgramSpec) -> list[str]:
    """What the program reads and the recipe doesn't fill."""
    made = makes(spec.init)
    wanted = [(source, *aliases) for source, aliases, _ in own_parameters(spec).values()]
    wanted += [(b.name,) for b in spec.lowered.buffers]
    return [names[0] for names in wanted if made.isdisjoint(names)]


def check_alike(asked: tuple[int | None, bool]) -> None:
    """WeightsError, on every rank, where ranks ask for different values: replicas would differ."""
    found = from_all(asked)
    other = next((rank for rank, one in enumerate(found) if one != found[0]), None)
    if other is not None:
        said = f"rank 0 asks for seed={found[0][0]}, rank {other} for seed={found[other][0]}"
        raise WeightsError("init_weights", said, "give the same arguments on every rank; each keeps its own shards")


def own_share() -> tuple[int, int]:
    """Which of the stored files this rank reads to check them: those of a node are dealt out to its ranks, for nodes
    may have folders of their own."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", ranks))


def check_start(
    name: str, start: Start, weights: str | os.PathLike | None, checkpoints: str | os.PathLike | None
) -> None:
    """See ``Plan.check_start``. ``name``: of the model."""
    lacking = must_be_given(start)
    if lacking and weights is None and not (checkpoints and any(Path(checkpoints).glob("step-*"))):
        remedy = "give --weights safetensors, or plan the function that makes it: parallelize(make_model, ...)"
        raise WeightsError(name, lacking, remedy)


def must_be_given(start: Start) -> str:
    """Why training can't start without weights; "" where it can."""
    if start.stored or start.repeats:
        return ""
    why = f" ({start.why})" if start.why else ""
    return f"nothing is known of the initial values of {start.unknown_text}{why}"
