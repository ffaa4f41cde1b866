"""The servers that a plan asks for, as one rank sees them."""

from collections.abc import Callable, Mapping, Sequence

from torch.optim import Optimizer

from autoplan.runtime.collectives.mesh_axes import MeshAxis
from autoplan.runtime.optim.asynchronous.asynchronous_servers import AsynchronousServers
from autoplan.runtime.parallel.servers.parameter_server import Servers
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter
from autoplan.runtime.program_spec import DATA, ProgramSpec


def servers_of(
    spec: ProgramSpec, held: Sequence[ShardedParameter], axes: Mapping[str, MeshAxis], optimizer: Optimizer,
    arrived: Callable[[], None], timeout_s: float, tell: Callable[[str], None],
) -> Servers | AsynchronousServers | None:  # fmt: skip
    """None where gradients are summed on all ranks."""
    if not spec.owners:
        return None
    found: Servers | AsynchronousServers
    if spec.parallelism.ahead:
        found = AsynchronousServers(spec, held, axes[DATA], optimizer, arrived, tell)
    else:
        found = Servers(spec, held, axes[DATA], arrived, timeout_s, tell)
    optimizer.register_step_pre_hook(lambda *_: found.before_update())
    return found
