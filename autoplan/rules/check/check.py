"""``check_rule``: a rule proved on every split, against the operator on one device."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._pytree import tree_map  # the documented way to walk nested arguments; no public alias

from autoplan.errors import NoRuleError, RuleError
from autoplan.ir.graph import Argument, DType
from autoplan.ir.mesh import TENSOR, Mesh
from autoplan.rules.check.case import Case, Sample
from autoplan.rules.check.counterexamples import Counterexample, compared, counterexample, found_differences
from autoplan.rules.check.differ import Difference
from autoplan.rules.check.keeps import keeping_note
from autoplan.rules.check.report import Row, RuleReport, states_text
from autoplan.rules.check.simulate import (
    Coordinates,
    Local,
    Outcome,
    communicates,
    everywhere,
    gradient_of,
    joint_groups,
    localise,
    run_local,
    run_whole,
)
from autoplan.rules.notation import AxisStrategy
from autoplan.rules.operator_names import OWN, known_overload, names_of
from autoplan.rules.registry import registered
from autoplan.rules.strategies import Strategy, axis_strategies
from autoplan.runtime.collectives.mesh_axes import mesh_axes
from autoplan.trace.builder import dtype_name
from autoplan.verify.local_ranks import RankPool

MESHES = ((2,), (4,), (3,), (2, 2), (2, 2, 2))
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


def check_rule(
    op: object, inputs: Sequence[object], kwargs: Mapping[str, object] | None = None, *,
    meshes: Sequence[Sequence[int]] = MESHES, dtype: torch.dtype = torch.float64,
) -> RuleReport:  # fmt: skip
    """Runs every strategy of an operator's rule on meshes of ranks, in this process, and compares value and gradients.

    op      as ``autoplan.rule`` takes it; of a packet the overload that has a rule
    inputs  the operator's arguments, small tensors among them, whose dims the meshes' sizes divide: what they don't
            isn't split. A list of such tuples is several calls. Floating tensors carry gradients; where some of them
            require one, only those do
    kwargs  the operator's keyword arguments
    meshes  sizes of axes: (2, 2, 2) is eight ranks on three axes, each of which may be split differently
    dtype   what floating tensors are cast to: float64, or float32 for an operator that has no float64, which is
            compared to 1e-4 in place of 1e-9

    RuleError where the rule is wrong: under which strategy, in which operand's gradient, by how much, what to change.
    NoRuleError where there is none.
    """
    name = ruled_name(op)
    calls = inputs if isinstance(inputs, list) else [inputs]
    samples = [sample_of(name, call, kwargs or {}, dtype) for call in calls]
    cases = [checked_case(sample) for sample in samples]
    found: list[tuple[Strategy, list[Difference]]] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for case in cases:
            for sizes in meshes:
                found += proved(case, mesh_of(sizes), TOLERANCES[dtype])
    rows = rows_of(found)
    notes = [*unsplit(cases, rows), *(note for case in cases for note in keeping_note(case))]
    specs = tuple(dict.fromkeys(case.rule.spec for case in cases))
    given = tuple(tuple(sizes) for sizes in meshes)
    return RuleReport(name, specs, dtype_name(dtype), given, len(found), rows, tuple(dict.fromkeys(notes)))


def ruled_name(op: object) -> str:
    """The overload that is meant. NoRuleError where none has a rule, RuleError where several have."""
    names = names_of(op)
    ruled = [name for name in names if name in registered()]
    if not ruled:
        raise NoRuleError(
            names[0], "it has no rule to be checked", f"register one with @autoplan.rule({names[0]!r}) and import it"
        )
    if len(ruled) > 1:
        raise RuleError(str(op), f"{', '.join(ruled)} have rules", "name the one that is to be checked")
    (name,) = ruled
    if known_overload(name) is None and not name.startswith(f"{OWN}."):
        raise RuleError(name, "torch knows no operator of that name", "import the module that defines it")
    return name


def sample_of(name: str, call: Sequence[object], kwargs: Mapping[str, object], dtype: torch.dtype) -> Sample:
    """The call with its floating tensors in the dtype, and marked by whether they carry a gradient."""
    if not isinstance(call, tuple):
        raise RuleError(f"inputs of type {type(call).__name__}", "they are the operator's arguments", "give a tuple")
    tensors: list[Tensor] = []
    tree_map(lambda x: tensors.append(x) if isinstance(x, Tensor) else None, (call, dict(kwargs)))
    marked = any(t.requires_grad for t in tensors)

    def given(value: object) -> Argument:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().to(dtype).requires_grad_(value.requires_grad or not marked)
        if isinstance(value, torch.dtype):
            return DType(dtype_name(value))
        return tuple(map(given, value)) if isinstance(value, tuple | list) else value

    return Sample(name, tuple(map(given, call)), tuple((key, given(value)) for key, value in kwargs.items()))


def checked_case(sample: Sample) -> Case:
    """The operator on one device, forward and backward. RuleError where that alone fails."""
    try:
        case = Case.of(sample)
        run_whole(case, gradient_of(case))
    except RuleError:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        raise RuleError(
            f"{sample.op} on one device", f"it fails on these inputs ({type(error).__name__}: {said})",
            "call it with inputs that it takes; give it a gradient with torch.library.register_autograd; give "
            "check_rule dtype=torch.float32 if it has no float64",
        ) from error  # fmt: skip
    return case


def mesh_of(sizes: Sequence[int]) -> Mesh:
    """A mesh of up to three axes. RuleError for what is none."""
    if not 1 <= len(sizes) <= len(TENSOR) or any(type(size) is not int or size < 2 for size in sizes):
        raise RuleError(f"mesh {sizes!r}", "it is no mesh", f"give sizes of 1 to {len(TENSOR)} axes, each at least 2")
    return Mesh.of(**dict(zip(TENSOR, sizes, strict=False)))


def proved(case: Case, mesh: Mesh, tolerance: float) -> list[tuple[Strategy, list[Difference]]]:
    """Every strategy with its differences, none above the tolerance. RuleError where one is wrong."""
    chosen = distinct(case.strategies(mesh), mesh)
    wrong: list[Counterexample] = []
    right = []
    for strategy, found in run_all(case, chosen, mesh):
        one = counterexample(case, strategy, mesh, found, tolerance)
        if one is not None:
            wrong.append(one)
        elif not isinstance(found, str):
            right.append((strategy, found))
    if wrong:
        more = f", and {len(wrong) - 1} further strategies of this mesh are wrong" if len(wrong) > 1 else ""
        others = [one.remedy for one in wrong if one.remedy != wrong[0].remedy]
        remedies = "; ".join(dict.fromkeys([wrong[0].remedy, *others[:3]]))
        raise RuleError(f"the rule of {case.node.op}, {case.rule.spec!r}", f"{wrong[0]}{more}", remedies)
    return right


def distinct(found: Iterable[Strategy], mesh: Mesh) -> list[Strategy]:
    """Of strategies that are alike but for the names of axes of one size, one."""
    order: dict[AxisStrategy, int] = {}
    kept = []
    for strategy in found:
        places = [(mesh.size(axis), order.setdefault(s, len(order))) for axis, s in strategy.axes]
        if all(one[0] != other[0] or one[1] <= other[1] for one, other in itertools.pairwise(places)):
            kept.append(strategy)
    return kept


def run_all(
    case: Case, chosen: Sequence[Strategy], mesh: Mesh
) -> Iterator[tuple[Strategy, list[Difference] | str]]:
    """Each strategy and its differences; those whose ranks communicate run on processes."""
    gradient = gradient_of(case)
    for strategy in chosen:
        if not communicates(strategy):
            yield strategy, found_differences(case, strategy, mesh, gradient)
    talking = [s for s in chosen if communicates(s)]
    if not talking:
        return
    jobs = [localise(case, s, mesh, gradient) for s in talking]
    with RankPool(len(everywhere(mesh)), timeout_s=300) as pool:
        results = pool.run(run_on_ranks, mesh, jobs)
    whole = run_whole(case, gradient)
    for n, strategy in enumerate(talking):
        outcomes = {at: results[rank][n] for rank, at in enumerate(everywhere(mesh))}
        yield strategy, compared(case, strategy, mesh, outcomes, whole)


def run_on_ranks(rank: int, size: int, mesh: Mesh, jobs: list[dict[Coordinates, Local]]) -> list[Outcome]:
    """This rank's part of each job."""
    names, groups = mesh.names, joint_groups(next(iter(job.values())).strategy for job in jobs)
    axes = mesh_axes(mesh, init_device_mesh("cpu", tuple(a.size for a in mesh.axes), mesh_dim_names=names), groups)
    at = tuple(axes[name].rank for name in names)
    return [run_local(job[at], axes) for job in jobs]


def unsplit(cases: Iterable[Case], rows: Iterable[Row]) -> Iterator[str]:
    """Factors that may split and never were, since no size divides."""
    split = {row.splits for row in rows}
    for case in cases:
        ways = axis_strategies(case.rule, case.types, case.carries)
        never = sorted({way.factor for way in ways if way.factor} - split)
        if never:
            yield f"never split: {', '.join(never)} of {case.rule.spec!r}; give inputs whose sizes the meshes' divide"


def rows_of(found: Sequence[tuple[Strategy, list[Difference]]]) -> tuple[Row, ...]:
    """One row for each way to run the operator on an axis."""
    ways: dict[tuple[str, str], list[list[Difference]]] = {}
    for strategy, differences in found:
        for key in dict.fromkeys((states_text(s), s.factor) for _, s in strategy.axes):
            ways.setdefault(key, []).append(differences)
    rows = []
    for (states, factor), all_ in ways.items():
        values = [d.error for one in all_ for d in one if d.what != "gradient"]
        gradients = [d.error for one in all_ for d in one if d.what == "gradient"]
        rows.append(Row(states, factor, len(all_), max(values), max(gradients, default=None)))
    return tuple(rows)
