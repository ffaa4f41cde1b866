"""What a loop of another library takes for its optimizer: the program's, at the rates of the loop's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from torch import nn
from torch.optim import Optimizer

from autoplan.errors import ParallelismError
from autoplan.runtime.optim.optimizer_options import optimizer_class
from autoplan.runtime.optim.parameter_group import titles
from autoplan.runtime.program import Program

KERNELS = ("params", "lr", "initial_lr", "name", "foreach", "fused", "capturable", "differentiable")
"""Settings of a group that change no value, and the rate, which the loop sets."""


class Rates:
    """The loop's optimizer and the program's: the same class and settings, and from now on the same rates.

    given       the loop's, over the module that the program was planned from; it never steps
    parameters  the module's, by name
    ParallelismError, with the first setting that differs, where the plan's optimizer isn't the same, or updates more.
    """

    def __init__(self, program: Program, given: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        self.program, self.given = program, given
        training = program.spec.training
        wanted = optimizer_class(training.optimizer)
        if len(training.optimizers) > 1:
            raise ParallelismError(
                f"the loop's optimizer {type(given).__name__}", f"the plan's are {' and '.join(training.optimizers)}",
                "leave the loop's out and call program.optimizer, or plan with one optimizer",
            )  # fmt: skip
        if type(given) is not wanted:
            raise ParallelismError(
                f"the loop's optimizer {type(given).__name__}", f"the plan's is {training.optimizer}",
                "plan with that optimizer in Training, or give the loop the plan's",
            )  # fmt: skip
        ours = {title: group for group in reversed(program.optimizer.param_groups) if (title := group["name"])}
        names = {parameter: name for name, parameter in parameters.items()}
        self.source: dict[str, int] = {}
        own = list(members(given, names))
        check_trained(program, {name for _, name in own if parameters[name].requires_grad})
        for number, name in own:
            title = titles(training)[training.group_of([name])]
            if title not in ours:
                continue  # this rank holds none of that group
            check_alike(name, given.param_groups[number], ours[title])
            if self.source.setdefault(title, number) != number:
                self.check_rates(title, number)

    def check_rates(self, title: str, number: int) -> None:
        one, other = (self.given.param_groups[n]["lr"] for n in (self.source[title], number))
        if one != other:
            cause = f"the plan's group {title!r} holds parameters of both"
            raise ParallelismError(f"groups with the rates {one:g} and {other:g}", cause, "plan with groups=")

    def take(self) -> None:
        """Gives the program the rates that the loop's schedulers have set."""
        for group in self.program.optimizer.param_groups:
            number = self.source.get(group["name"])
            if number is not None:
                group["lr"] = self.given.param_groups[number]["lr"]

    def give(self) -> None:
        """Gives the loop's groups the program's rates, where a checkpoint has brought them."""
        rates = {group["name"]: group["lr"] for group in self.program.optimizer.param_groups}
        for title, number in self.source.items():
            self.given.param_groups[number]["lr"] = rates[title]


def members(given: Optimizer, names: Mapping[nn.Parameter, str]) -> Iterator[tuple[int, str]]:
    """Each group's number and its parameters' names; ParallelismError for a parameter that isn't the module's."""
    for number, group in enumerate(given.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                cause = f"it holds a parameter of shape {tuple(parameter.shape)} that isn't the model's"
                raise ParallelismError("the loop's optimizer", cause, "make it from the parameters of the model")
            yield number, names[parameter]


def check_trained(program: Program, held: Set[str]) -> None:
    """ParallelismError where the plan trains what the loop's optimizer leaves as it is."""
    for stored in program.spec.lowered.parameters:
        for each in stored.members or (stored,):
            if stored.trainable and held.isdisjoint((each.source, *each.aliases)):
                cause = "the plan trains it, and the loop's optimizer doesn't hold it, or it is frozen"
                remedy = "give it to the optimizer; to leave it as it is, set requires_grad=False and plan again"
                raise ParallelismError(f"the parameter {each.source}", cause, remedy)


def check_alike(name: str, given: Mapping[str, object], planned: Mapping[str, object]) -> None:
    for key in sorted((given.keys() & planned.keys()).difference(KERNELS)):
        if given[key] != planned[key]:
            raise ParallelismError(
                f"{key}={given[key]!r} of {name}", f"the plan has {key}={planned[key]!r}",
                "plan with Training(…) of the same settings",
            )  # fmt: skip
