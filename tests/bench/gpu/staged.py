"""Process groups in which several ranks share one device: what crosses does so in the host's memory, by gloo.

NCCL takes no two ranks of one device, and gloo sums and broadcasts a device's tensors alone (torch 2.11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from autoplan.rehearsal.device.process_groups import NamedGroup

BACKEND = "staged"
_Work: Any = dist._Work


class StagedWork(_Work):
    """Something under way in the host's memory; what it made comes back to the device when it is waited for.

    back  (tensor on the device, its copy in the host's memory)
    """

    def __init__(self, work: Any, back: Sequence[tuple[Tensor, Tensor]], result: list[Tensor]) -> None:
        super().__init__()
        self.work, self.back, self.result_ = work, list(back), result

    def wait(self, timeout: object = None) -> bool:
        if self.work is not None:
            self.work.wait()
        for target, source in self.back:
            with torch.no_grad():
                target.copy_(source)
        self.work, self.back = None, []
        return True

    def is_completed(self) -> bool:
        return self.work is None or self.work.is_completed()

    def get_future(self) -> torch.futures.Future:
        self.wait()
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.result_)
        return future


class StagedGroup(NamedGroup):
    """Collectives end before they return; messages end when they are waited for, so that two ranks may exchange."""

    backend = BACKEND

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> StagedWork:
        return self._ended(lambda host: self._reduced(host, opts), tensors, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> StagedWork:
        for each in tensors:
            self.allreduce([each], opts)
        return StagedWork(None, (), tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> StagedWork:
        return self._ended(lambda host: self.gloo.broadcast(host, opts), tensors, tensors)

    def reduce(self, tensors: list[Tensor], opts: Any) -> StagedWork:
        return self._ended(lambda host: self.gloo.reduce(host, opts), tensors, tensors)

    def barrier(self, opts: Any = None) -> StagedWork:
        return self._ended(lambda host: self.gloo.barrier(), [], [])

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> StagedWork:
        made = [part for parts in outputs for part in parts]
        host = [[_on_host(part) for part in parts] for parts in outputs]
        self.gloo.allgather(host, [_on_host(x) for x in inputs]).wait()
        return self._back(made, [part for parts in host for part in parts])

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> StagedWork:
        parts = [_on_host(given) for _ in range(self.size())]
        self.gloo.allgather([parts], [_on_host(given)]).wait()
        return self._back([output], [torch.cat([part.reshape(-1) for part in parts]).view(output.shape)])

    _allgather_base = all_gather_single  # its name before torch 2.13

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> StagedWork:
        for output, given in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, given)
        return StagedWork(None, (), outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> StagedWork:
        summed = [_on_host(given)]
        self._reduced(summed, opts).wait()
        own = summed[0].reshape(self.size(), -1)[self.rank()]
        return self._back([output], [own.view(output.shape)])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> StagedWork:
        for output, given in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, given, opts)
        return StagedWork(None, (), outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> StagedWork:
        for output, parts in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, torch.cat([part.reshape(-1) for part in parts]), opts)
        return StagedWork(None, (), outputs)

    def all_to_all_single(
        self, output: Tensor, given: Tensor, received: list[int], sent: list[int], opts: Any = None
    ) -> StagedWork:
        host = torch.empty_like(output, device="cpu")
        self.gloo.alltoall_base(host, _on_host(given), received, sent).wait()
        return self._back([output], [host])

    alltoall_base = all_to_all_single

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> StagedWork:
        host = [[torch.empty_like(part, device="cpu") for part in parts] for parts in outputs]
        self.gloo.gather(host, [_on_host(x) for x in inputs], opts).wait()
        return self._back([part for parts in outputs for part in parts], [part for parts in host for part in parts])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> StagedWork:
        host = [torch.empty_like(output, device="cpu") for output in outputs]
        self.gloo.scatter(host, [[_on_host(part) for part in parts] for parts in inputs], opts).wait()
        return self._back(outputs, host)

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> StagedWork:
        return StagedWork(self.gloo.send([_on_host(x) for x in tensors], peer, tag), (), tensors)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> StagedWork:
        host = [torch.empty_like(x, device="cpu", memory_format=torch.contiguous_format) for x in tensors]
        return StagedWork(self.gloo.recv(host, peer, tag), list(zip(tensors, host, strict=True)), tensors)

    def _reduced(self, tensors: list[Tensor], opts: Any) -> Any:
        """gloo has no mean: the sum, divided."""
        operation = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        mean = operation == dist.ReduceOp.AVG
        asked = dist.AllreduceOptions()
        asked.reduceOp = dist.ReduceOp.SUM if mean else operation
        work = self.gloo.allreduce(tensors, asked)
        work.wait()
        for each in tensors if mean else ():
            each.div_(self.size())
        return StagedWork(None, (), tensors)

    def _ended(self, act: Callable[[list[Tensor]], Any], given: list[Tensor], made: list[Tensor]) -> StagedWork:
        host = [_on_host(x) for x in given]
        act(host).wait()
        return self._back(made, host)

    def _back(self, made: Sequence[Tensor], host: Sequence[Tensor]) -> StagedWork:
        work = StagedWork(None, list(zip(made, host, strict=True)), list(made))
        work.wait()
        return work


def _on_host(x: Tensor) -> Tensor:
    """A copy, row-major."""
    return x.detach().cpu().clone(memory_format=torch.contiguous_format)


def join(device: str) -> None:
    """Starts the default process group of torchrun's ranks, for tensors of the host and of a device they share."""

    def create(common: Any, options: Any) -> StagedGroup:
        return StagedGroup(common.store, common.group_rank, common.group_size, common.timeout)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=sorted({"cpu", device}))
    dist.init_process_group(BACKEND)
