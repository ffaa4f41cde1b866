"""The files of a checkpoint as DCP's planner and protocol write and read them.

torch.distributed.checkpoint decides which rank writes which box of a tensor, and which boxes a rank reads; and it
raises on all ranks what goes wrong on one. How bytes lie in files is ours: torch's own reader unpickles ``.metadata``,
and notices no flipped bit.
"""

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from autoplan.errors import WeightsError
from autoplan.runtime.checkpoint.bytes import PIECE_BYTES, TensorFile, check_chunk, read_chunk
from autoplan.runtime.checkpoint.folders import WRITING, Lineage, make_way, prune, put_in_place, rank_file
from autoplan.runtime.checkpoint.index import (
    TENSORS,
    Index,
    SavedChunk,
    SavedTensor,
    chunks_of,
    digest,
    index_text,
    metadata,
)
from autoplan.runtime.checkpoint.state_json import (
    STATE,
    CheckpointState,
    bytes_of,
    state_text,
    sync_folder,
    write_synced,
)


class CheckpointWriter(StorageWriter):
    """Writes a checkpoint into a folder of its own, and moves it to its place as the last act of DCP's protocol.

    So what fails on any rank, the move included, is raised on all of them.

    folder  the empty folder to write into, which the first rank has made
    keep    see ``folders.prune``; None: all stay
    look    raises, on any rank, where it isn't to be written
    """

    def __init__(
        self, folder: Path, target: Path, state: CheckpointState, lineage: Lineage, keep: int | None,
        look: Callable[[], None],
    ) -> None:  # fmt: skip
        self.folder, self.target, self.state, self.lineage, self.keep = folder, target, state, lineage, keep
        self.look = look

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """A writer writes one checkpoint."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """Nothing: the first rank has made the folder."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the first rank: tells each rank its file."""
        return [dataclasses.replace(plan, storage_data=rank_file(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """On every rank: its boxes, one after another."""
        self.look()
        name, written = plan.storage_data, []
        with TensorFile(self.folder / name) as file:
            for item in plan.items:
                tensor = planner.resolve_data(item)
                assert isinstance(tensor, Tensor) and item.tensor_data is not None, item.index
                start, crc = file.add(tensor)
                box = item.tensor_data.chunk
                chunk = SavedChunk(name, start, crc, tuple(box.offsets), tuple(box.sizes))
                written.append(WriteResult(item.index, file.position - start, chunk))
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank, once all have written."""
        chunks: dict[str, list[SavedChunk]] = {}
        sizes = {rank_file(rank): sum(r.size_in_bytes for r in written) for rank, written in enumerate(results)}
        check_visible(self.folder, sizes)
        for result in (result for written in results for result in written):
            chunks.setdefault(result.index.fqn, []).append(result.storage_data)
        index = {key: saved_tensor(metadata, key, found) for key, found in chunks.items()}
        content = index_text(index).encode()
        write_synced(self.folder / TENSORS, content)
        state = dataclasses.replace(self.state, tensors=digest(content), files={**sizes, TENSORS: len(content)})
        write_synced(self.folder / STATE, state_text(state).encode())
        (self.folder / WRITING).unlink()
        sync_folder(self.folder)
        make_way(self.target, self.lineage)
        put_in_place(self.folder, self.target)
        if self.keep is not None:
            prune(self.target, self.keep, self.lineage)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return True


def saved_tensor(metadata: Metadata, key: str, chunks: Sequence[SavedChunk]) -> SavedTensor:
    entry = metadata.state_dict_metadata[key]
    assert isinstance(entry, TensorStorageMetadata), key
    return SavedTensor(entry.properties.dtype, tuple(entry.size), tuple(chunks))


def check_visible(folder: Path, sizes: Mapping[str, int]) -> None:
    """OSError where the first rank doesn't see what the others have written: their nodes have disks of their own."""
    for name, size in sizes.items():
        found = bytes_of(folder / name)
        if found != size:
            what = "isn't there" if found is None else f"has {found} bytes of {size}"
            raise OSError(f"{name}, which that rank has written, {what}: all ranks need one folder that all see")


class CheckpointReader(StorageReader):
    """Reads a checkpoint's boxes, and compares the checksum of each chunk that it meets."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index, self.metadata = folder, index, metadata(index)

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        """A reader reads one checkpoint."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        return self.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """Nothing: the index is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """On every rank: what it wants of each chunk, into its own memory."""
        for item in plan.items:
            tensor, chunk = self.source(item)
            values = read_chunk(self.folder, item.storage_index.fqn, tensor, chunk)
            for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                values = values.narrow(dim, start, length)
            wanted = planner.resolve_tensor(item).detach()
            wanted.copy_(values)
            planner.commit_tensor(item, wanted)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def source(self, item: ReadItem) -> tuple[SavedTensor, SavedChunk]:
        return self.metadata.storage_data[item.storage_index]

    def check(self, state: Mapping[str, Tensor]) -> None:
        """WeightsError where a chunk that this rank reads into ``state`` isn't as it was written, or one of its share
        of all chunks: together the ranks look at every byte."""
        plan = create_default_local_load_plan(dict(state), self.metadata)
        mine = {self.source(item)[1] for item in plan.items}
        rank, ranks = dist.get_rank(), dist.get_world_size()
        share = [chunk for number, (_, _, chunk) in enumerate(chunks_of(self.index)) if number % ranks == rank]
        check_chunks(self.folder, self.index, mine | set(share))
        for item in plan.items:
            self.check_range(item, state[item.storage_index.fqn].dtype)

    def check_range(self, item: ReadItem, dtype: torch.dtype) -> None:
        """WeightsError where finite values would be infinite in the dtype that they are read into."""
        tensor, chunk = self.source(item)
        if not tensor.dtype.is_floating_point or torch.finfo(dtype).max >= torch.finfo(tensor.dtype).max:
            return
        values = read_chunk(self.folder, item.storage_index.fqn, tensor, chunk)
        if bool((values.isfinite() & ~values.to(dtype).isfinite()).any()):
            said = f"{item.storage_index.fqn} has values beyond the range of {dtype}, in which this plan keeps it"
            raise WeightsError(self.folder, said, f"plan with a precision that stores {tensor.dtype}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return True


def check_chunks(folder: Path, index: Index, wanted: Collection[SavedChunk] | None = None) -> None:
    """WeightsError where the bytes of one of these chunks, None: of any, aren't those that were written."""
    piece = memoryview(bytearray(PIECE_BYTES))
    for key, tensor, chunk in sorted(chunks_of(index), key=lambda found: (found[2].file, found[2].start)):
        if wanted is None or chunk in wanted:
            check_chunk(folder, key, tensor, chunk, piece)
