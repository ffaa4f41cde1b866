"""A plan's model on one rank, as programs of training and of the forward alone hold it: its stages and its weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from autoplan.errors import LaunchError
from autoplan.option_values import ON_DISK
from autoplan.runtime.agreement.agreement import Agreement, AskedOnce, Call
from autoplan.runtime.broken_off import BrokenOff
from autoplan.runtime.collectives.mesh_axes import mesh_axes
from autoplan.runtime.elastic import launch
from autoplan.runtime.elastic.hang_report import BETWEEN
from autoplan.runtime.memory.disk_memory import DiskMemory, on_disk
from autoplan.runtime.not_a_module import not_of_a_module
from autoplan.runtime.parallel import whole_tensors
from autoplan.runtime.parallel.meshes import sharded_meshes
from autoplan.runtime.parallel.sharded_parameter import ShardedParameter, sharded_parameters
from autoplan.runtime.parallel.stages import build_stages
from autoplan.runtime.program_spec import ProgramSpec
from autoplan.runtime.row_cache import RowCache, cache_of
from autoplan.runtime.weights import loading, starting
from autoplan.runtime.weights.writing import MAX_FILE_BYTES, trained_of, write_weights

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11


class RankModel:
    """This rank's part of a plan's model. Every method is called on every rank.

    spec        the plan
    module      the imported program.py: STAGES, one callable for each stage, and counts()
    timeout_s   longest that a rank may be in one part of its work, or the script between two steps; then all ranks
                end, and the one that hangs is named (``runtime.elastic.watchdog``)
    groups      axes of groups that are needed beside those of the program's own collectives

    LaunchError where there are more or fewer processes than the plan has devices.
    """

    closed = filled = False
    pretrained: Path | None = None

    def __init__(
        self, spec: ProgramSpec, module: ModuleType, timeout_s: float, groups: Iterable[tuple[str, ...]] = ()
    ) -> None:
        self.spec, self.module = spec, module
        self.world = launch.join(spec.lowered.mesh, timeout_s, spec.on_processors)
        self.watch, self.device, self.rank = self.world.watch, self.world.device, dist.get_rank()
        self.watch.apart = bool(spec.parallelism.ahead)
        groups = (*spec.lowered.groups, *groups)
        self.axes = mesh_axes(spec.lowered.mesh, self.world.device_mesh, groups)
        zero = sharded_meshes(spec, self.world.device_mesh.device_type)
        streams = spec.parallelism.offload == ON_DISK
        self.disk = DiskMemory() if streams or spec.parallelism.tables == ON_DISK else None
        on_disk = None if self.disk is None else self.disk.zeros
        built = spec, module.STAGES, self.axes, self.device, self.world.device_mesh, zero
        self.stages = build_stages(*built, on_disk if spec.parallelism.tables == ON_DISK else None)
        self.held = sharded_parameters(spec, self.stages.parameters, self.axes, on_disk if streams else None)
        self.storage = whole_tensors.Storage(spec, self.world.device_mesh, self.device, zero)
        self.unread = whole_tensors.unread_values(spec, self.rank)
        self.agreement = (AskedOnce if spec.parallelism.tolerates_stragglers else Agreement)(self.axes, self.device)
        self.broken = BrokenOff(alone=spec.lowered.mesh.devices == 1 and len(spec.lowered.stages) == 1)

    def init_weights(self, seed: int | None = None, *, reset_parameters: bool = False) -> None:
        """The parameters and buffers that training starts from, as the user's model has them on one device.

        seed   of a plan of a function that makes the model, or of a transformers model: what torch.manual_seed(seed)
               and then the function, or the class with its configuration, make on the CPU, bit for bit. None: the
               values that came with the plan, where the model had some; else seed 0
        reset_parameters   a model from the meta device of which nothing else is known: whatever the reset_parameters
               of its submodules, in the order of modules(), make under the seed. What the model's author sets
               otherwise, it doesn't do: never taken unless it is asked for

        WeightsError, on every rank and before anything is changed, where the plan can't give these values, where ranks
        ask for different ones, or where the plan's stored values aren't those that were exported.
        """
        with self._during("the weights' initialisation", "init_weights"):
            starting.initialise(self.spec, seed, reset_parameters, self.held, self.stages.buffers, self.unread)
            self._taken_up()

    def load_weights(self, source: str | os.PathLike | Mapping[str, Tensor], strict: bool = False) -> None:
        """Values from a safetensors file, a directory of them, or a whole state dict, under the user's names.

        strict  refuse tensors that the model doesn't have; otherwise they are left out, and the first rank warns

        Names that differ as transformers' from_pretrained allows are found too: without or with the name of the part
        that holds the model, tied parameters under any of theirs. Each rank reads its own slices only. Files that
        ``save_weights`` wrote are compared with their checksums; of others a flipped bit can't be seen.
        WeightsError, before anything is changed, where a parameter is missing, has another shape or isn't finite, and
        where a file is damaged. (Files are read once: where one turns out to hold NaN, a training program that was
        filled before gets its values back.)
        """
        with self._during("loading weights", "load_weights"):
            loading.load(
                self.spec, self.held, self.stages.buffers, source, self.unread, strict=strict, restore=self.filled
            )
            self._taken_up()

    def full_state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers, whole, under the user's names, on the CPU of rank 0; {} on the other ranks.

        Those that the program never reads among them, with the values that they were given. The empty one can't
        be pickled: ``torch.save`` on every rank would write it over the whole one.
        """
        self._settle()  # first: of workers that don't wait for one another, some may not come before others have
        self.agreement.called(Call("full_state_dict", 0))
        self.broken.check_values("full_state_dict")
        values = whole_tensors.gathered(self.spec, self.storage, self.held, lambda held: self._averaged(held.values))
        rest = whole_tensors.whole_buffers(self.spec, self.stages.buffers)
        found = whole_tensors.by_user_names(values) | rest | whole_tensors.under_all_names(self.spec, self.unread)
        return found if self.rank == 0 else whole_tensors.OnFirstRank()

    def save_weights(
        self, folder: str | os.PathLike, dtype: torch.dtype | None = None, max_file_bytes: int = MAX_FILE_BYTES,
        *, trained_only: bool = False,
    ) -> None:  # fmt: skip
        """The weights as Hugging Face safetensors, which transformers' from_pretrained and ``load_weights`` read.

        folder          gets model.safetensors, or several files and their index; autoplan-weights.json, which says what
                        was written, with checksums; and config.json, generation_config.json and the tokenizer's files
                        where they came with the model, unless you have put others there, which stay
        dtype           of what is floating; None: as it is stored, under mixed precision float32 where it is trained
        max_file_bytes  a tensor that is larger has a file of its own
        trained_only    the trained parameters alone, as adapters beside frozen weights; config.json and the like, which
                        describe the whole model, aren't written

        Original names, fused projections whole, a tied parameter under its first name, as save_pretrained has it. One
        tensor after another is gathered on the rank that writes its file; no rank holds more of the model than that.
        Of replicas that step by themselves the mean is written. Only an earlier save's files are replaced or removed.
        InputsError where ranks disagree on ``trained_only``. CheckpointError, on every rank, where any couldn't write,
        and where other files would be replaced or be read in the place of these; what stood there is then left alone.
        DivergedError where a trained parameter isn't finite.
        """
        name = "save_weights(trained_only=True)" if trained_only else "save_weights"
        with self._during("saving weights", name):
            self._check_parameters()
            what = self.spec, self.held, self.stages.buffers, self.unread, self.pretrained
            spec, held, buffers, unread, beside = trained_of(*what) if trained_only else what
            write_weights(
                spec, self.storage, held, buffers, unread, folder, dtype, max_file_bytes, beside,
                part_of=lambda held: self._averaged(held.values),
            )  # fmt: skip

    def table_misses(self) -> dict[str, float]:
        """Of tables that lie off the device: by the user's name of each, of the rows that this rank's look-ups asked
        its cache for until now, each once a look-up, the share that wasn't there: ``Parallelism.table_misses``."""
        counts: dict[str, list[int]] = {}
        for held, cache in self._caches():
            first = held.part.start[0]
            for member in held.stored.members:
                if (box := cache.boxes.get(member.start - first)) is not None:
                    asked, missing = counts.setdefault(member.source, [0, 0])
                    counts[member.source] = [asked + box.asked, missing + box.missing]
        return {name: missing / asked for name, (asked, missing) in counts.items() if asked}

    def _caches(self) -> Iterator[tuple[ShardedParameter, RowCache]]:
        """Of parameters that lie off the device."""
        each = ((held, cache_of(held.parameter)) for held in self.held)
        return ((held, cache) for held, cache in each if cache is not None)

    def _follow_tables(self, optimizer: Optimizer) -> None:
        """Has what reads an optimizer's state find all of it there, and what sets it be heeded."""
        self._states_to_disk(optimizer)
        optimizer.register_state_dict_pre_hook(lambda *_: self._tables_whole())
        optimizer.register_load_state_dict_pre_hook(lambda *_: self._tables_whole())
        optimizer.register_load_state_dict_post_hook(self._tables_set)

    def _states_to_disk(self, optimizer: Optimizer) -> None:
        """On disks lies what has an element for each of the tables'."""
        for held, _ in self._caches():
            state, disk = optimizer.state.get(held.updated, {}), self.disk
            for name, value in state.items():
                of_each = isinstance(value, Tensor) and value.shape == held.updated.shape
                if disk is not None and of_each and not on_disk(value):
                    state[name] = disk.zeros(value.shape, value.dtype).copy_(value)

    def _tables_whole(self) -> None:
        """Before something reads tables where they lie."""
        for _, cache in self._caches():
            cache.flush()

    def _tables_set(self, optimizer: Optimizer) -> None:
        """After something wrote them there, or a state was loaded: into the host's memory."""
        self._states_to_disk(optimizer)
        for _, cache in self._caches():
            cache.drop()

    def __getattr__(self, name: str) -> object:
        """NotAModuleError for what people call of a module."""
        raise not_of_a_module(type(self).__name__, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not launch.lost_connection(error):  # else what is to be waited for never comes
            self.close()

    def close(self) -> None:
        """Ends the process groups that this program started: the default one, or in a default one of yours its own."""
        self.closed = True
        self.world.close(self.storage.meshes)

    @contextmanager
    def _during(self, phase: str, call: str = "") -> Iterator[None]:
        """Tells the watch what this rank does; all ranks are asked for the call. LaunchError once it is closed."""
        if self.closed:
            raise LaunchError("a program that is closed", f"{phase} is asked of it", "make another: plan.program()")
        self.watch.enter(phase, self._count())
        try:
            if call:
                self._settle()
                alike = call == "evaluate" and not self.spec.parallelism.ahead
                self.agreement.called(Call(call, self._count() if alike else 0))
            yield
        finally:
            self.watch.enter(BETWEEN, self._count())

    def _count(self) -> int:
        """Steps, or forwards, until now."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Waits for values that are on their way: a caller reads or sets them."""

    def _taken_up(self) -> None:
        """After parameters were set by something other than a step."""

    def _check_parameters(self, call: str = "save_weights") -> None:
        """Before parameters are written."""
        self.broken.check_values(call)

    def _averaged(self, values: Tensor | None) -> Tensor | None:
        """Of replicas that step by themselves the mean."""
        return values
