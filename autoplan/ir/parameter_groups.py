"""Groups of parameters that an optimizer treats by options of their own, by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autoplan.arguments.keywords import keywords
from autoplan.arguments.values import Settings, settings
from autoplan.errors import ParallelismError

OPTIMIZER_FIELDS: Mapping[str, str] = {
    "learning_rate": "lr", "weight_decay": "weight_decay", "betas": "betas", "eps": "eps", "momentum": "momentum",
}  # fmt: skip
"""Options of optimizers that Training has fields for, with torch's names for them."""

Matching = Callable[[str, object], bool]
"""Whether a parameter, given by the user's name and as a tensor of the meta device, belongs to a group."""


OPTIONS = (*OPTIMIZER_FIELDS, *OPTIMIZER_FIELDS.values(), "amsgrad", "dampening", "nesterov", "maximize", "fused")
OTHERS = {
    **{name: f"options={{'{name}': …}}, or a mapping: {{'match': …, '{name}': …}}" for name in OPTIONS},
    **dict.fromkeys(("params", "parameters"), "match='*norm*|*.bias', patterns over the parameters' names"),
}  # fmt: skip
"""What people write of torch's own groups."""


@keywords(ParallelismError, OTHERS)
@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that the optimizer treats by options of their own; each belongs to the first group that matches it.

        Training(groups=[{"match": "*norm*|*.bias", "weight_decay": 0.0}])
        Training(groups=[{"match": "tables.*", "optimizer": "rowwise-adagrad", "learning_rate": 0.02}])

    match    shell patterns (fnmatch's: * and ? and [ab]) over the user's names, several separated by |; or a predicate
             (name, parameter) -> bool, which planning resolves into ``names``
    options  the optimizer's own, by its names (or ``learning_rate``): a mapping, or pairs
    names    the parameters that a predicate was true of; with a pattern none
    optimizer  that updates them, by its lower-case name, where it is another than Training's: of what Training says of
             its own it has the learning rate alone. None: Training's
    """

    match: str | Matching
    options: Settings = ()
    names: tuple[str, ...] = ()
    optimizer: str | None = None

    def __post_init__(self) -> None:
        given = dict(settings("a group's options", self.options))
        if {"lr", "learning_rate"} <= given.keys():
            raise ParallelismError(f"a group's options {given}", "lr and learning_rate are one", "give one of them")
        renamed = {OPTIMIZER_FIELDS.get(name, name): value for name, value in given.items()}
        object.__setattr__(self, "options", tuple(sorted(renamed.items())))
        if not isinstance(self.names, tuple | list) or not all(isinstance(name, str) for name in self.names):
            cause = "these are the names of parameters that a predicate was true of"
            raise ParallelismError(f"a group's names {self.names!r}", cause, "leave them out: planning fills them in")
        object.__setattr__(self, "names", tuple(self.names))
        if not callable(self.match) and not (isinstance(self.match, str) and all(self.match.split("|"))):
            cause = "a group matches by a pattern or a predicate"
            raise ParallelismError(f"match={self.match!r}", cause, "give for example '*norm*|*.bias'")
        if self.optimizer is not None and not isinstance(self.optimizer, str):
            said, cause = f"the group {self.title!r}", "its optimizer is given by its lower-case name"
            raise ParallelismError(f"{said}: optimizer={self.optimizer!r}", cause, "give 'adagrad', say")
        if not self.options and self.optimizer is None:
            cause = "it has no options"
            raise ParallelismError(f"the group {self.title!r}", cause, "give for example weight_decay=0.0")

    @property
    def title(self) -> str:
        """By which ``optimizer.param_groups`` and errors name it."""
        return self.match if isinstance(self.match, str) else getattr(self.match, "__name__", "a predicate")

    def has(self, names: Iterable[str]) -> bool:
        """Whether it matches a parameter by any of its names."""
        if callable(self.match) or self.names:
            return not self.names_of().isdisjoint(names)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.match.split("|"))

    def names_of(self) -> frozenset[str]:
        """What a predicate was resolved into."""
        return frozenset(self.names)


def as_groups(given: object) -> tuple[ParameterGroup, ...]:
    """What a user gives for groups as such; ParallelismError where it is none."""
    if not isinstance(given, list | tuple):
        given = (given,)
    return tuple(map(as_group, given))


def as_group(given: object) -> ParameterGroup:
    if isinstance(given, ParameterGroup):
        return given
    if not isinstance(given, Mapping) or "match" not in given:
        cause = "a group says which parameters it matches, and their options"
        example = "give for example {'match': '*norm*|*.bias', 'weight_decay': 0.0}"
        raise ParallelismError(f"groups: {given!r}", cause, example)
    further = {name: value for name, value in given.items() if name not in ("match", "options", "optimizer")}
    options = {**dict(settings("a group's options", given.get("options", ()))), **further}
    return ParameterGroup(given["match"], options, optimizer=given.get("optimizer"))  # type: ignore[arg-type]
