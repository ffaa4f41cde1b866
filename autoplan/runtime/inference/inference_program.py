"""The program of a plan of Inference() on one rank: the forward alone, with nothing of a training step."""

from types import ModuleType

from torch import Tensor

from autoplan.errors import ForwardOnlyError
from autoplan.runtime.data.microbatches import Batch
from autoplan.runtime.elastic import launch
from autoplan.runtime.inference.forward import Forward
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.rank_model import RankModel

OF_TRAINING = (
    "clip_grad_norm_", "evaluate", "full_grads", "latest_checkpoint", "load_checkpoint", "load_state_dict", "optimizer",
    "save_checkpoint", "set_learning_rate", "skipped", "state_dict", "step", "steps", "updates",
)  # fmt: skip


class InferenceProgram(RankModel):
    """A plan's forward, on this rank. Every method is called on every rank.

    spec, module, timeout_s  as of ``RankModel``, which has the methods that fill and save the weights

    No gradient, no optimizer and no optimizer state are ever allocated. ForwardOnlyError for what belongs to training.
    """

    def __init__(self, spec: ProgramSpec, module: ModuleType, timeout_s: float = launch.TIMEOUT_S) -> None:
        super().__init__(spec, module, timeout_s)
        self.runs = 0
        for parameter in self.stages.parameters.values():
            parameter.requires_grad_(False)
        self.forwards = Forward(spec, module, self.stages.modules, self.axes, self.device, self.world.device_mesh)

    def forward(self, batch: Batch) -> Tensor:
        """The model's result for a batch, whole, on every rank, as ``model.eval()`` computes it.

        batch  1 to as many rows as planned: the whole batch on every rank, or on each its own rows, which are then put
               together, as the result's are, in the order of the data axis
        InputsError for another batch; ParallelismError for a number of rows that this model's graph doesn't tell.
        """
        self.broken.check("forward")
        with self._during("the forward", "forward"):
            result = self.forwards.run(batch, self.broken, step=self.runs)
        self.runs += 1
        return result

    __call__ = forward

    def __getattr__(self, name: str) -> object:
        """What ``Program`` has and this one lacks."""
        if name in OF_TRAINING:
            cause = "a plan of Inference() runs the forward alone"
            raise ForwardOnlyError(f"program.{name}", cause, "plan with training=Training(...) to train the model")
        return super().__getattr__(name)

    def _count(self) -> int:
        return self.runs
