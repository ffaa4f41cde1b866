"""Every error a user can meet: the value that was met, the cause, the remedy.

The text is always ``value: cause. remedy.``, so that one reads what was wrong before what to do. The command line
prints it and exits with 2; nothing that is raised here ever needs a traceback to be understood.
"""


class AutoplanError(Exception):
    """A mistake that a user can mend.

    value   what was met, as the user wrote it
    cause   why it can't be
    remedy  what to do instead
    """

    def __init__(self, value: object, cause: str, remedy: str) -> None:
        self.value, self.cause, self.remedy = str(value), cause.rstrip("."), remedy.rstrip(".")
        end = "" if self.remedy.endswith("?") else "."
        super().__init__(f"{self.value}: {self.cause}. {self.remedy}{end}")

    def __reduce__(self) -> tuple:
        return type(self), (self.value, self.cause, self.remedy)


class ClusterError(AutoplanError, ValueError):
    """A cluster that is not one: an unknown device, no nodes, a malformed text."""


class InputsError(AutoplanError, ValueError):
    """Example inputs that are missing, or that don't fit the model or the cluster."""


class TraceError(AutoplanError):
    """A model that can't be traced; the line of the user's code is in the cause."""


class RescaleError(AutoplanError, ValueError):
    """A traced model that can't be taken to another batch or sequence without tracing it again."""


class NoRuleError(AutoplanError):
    """An operator that has no rule."""


class RuleError(AutoplanError, ValueError):
    """A rule of an operator that is none, or that says what isn't so."""


class ExtensionError(AutoplanError, ImportError):
    """An operator of a user's own, or its rule, that this process doesn't have and can't import."""


class ParallelismError(AutoplanError, ValueError):
    """A pinned parallelism or an option that doesn't fit the cluster, the batch or the model."""


class DoesNotFitError(AutoplanError):
    """No plan fits the memory; the remedy names the nearest that would."""


class PlanFileError(AutoplanError, ValueError):
    """A plan.json of another schema, or one edited into nonsense."""


class LayoutError(AutoplanError):
    """A lowered program whose layouts don't follow from one another: autoplan's own mistake, or an edited plan's."""


class LaunchError(AutoplanError, RuntimeError):
    """The program was started in a way that the plan wasn't made for."""


class ForwardOnlyError(AutoplanError, AttributeError):
    """Something of a training step is asked of a program that runs the forward alone."""


class NotAModuleError(AutoplanError, AttributeError):
    """What a torch module has, asked of a program, which has it otherwise."""


class LostRankError(AutoplanError, RuntimeError):
    """A rank that never came, hangs, answers no more, or broke a step off; the others are waiting for it."""


class WeightsError(AutoplanError, ValueError):
    """Weights or a checkpoint that can't be read, lack a parameter, or hold it in another shape."""


class CheckpointError(AutoplanError, RuntimeError):
    """A checkpoint or weights that couldn't be written; what was there before is whole."""


class DivergedError(AutoplanError, ArithmeticError):
    """A loss, gradients or parameters that are no longer finite; nothing was updated with them, nor saved."""


class VerificationError(AutoplanError, AssertionError):
    """The sharded program differs from one device."""


class DiskError(AutoplanError, RuntimeError):
    """The disk that a program keeps state on is full, fails, or is none."""


class RehearsalError(AutoplanError, RuntimeError):
    """A program can't be rehearsed here, or its rehearsal broke off."""
