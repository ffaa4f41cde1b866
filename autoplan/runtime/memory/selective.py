"""Segments that drop what is cheap to compute, and compute it again where the backward reads it.

``recomputable(self, function, *values)`` in a block's forward is ``function(*values)``. In a segment that recomputes
selectively its result isn't kept: what autograd would save of it is replaced by the call, and the values that the call
takes are kept instead, or are computed again in their turn. Nothing else runs twice: neither a product whose result
nobody reads, nor a reduction over ranks. Which results a block names so is the plan's choice
(``autoplan.search.block_cost.selective``).

A mixture's experts keep more than their operands and results. In such a segment they don't where the plan says so,
``keep=keeps(self)``, and in none do they keep what their activation makes, ``keep_activated=keeps(self)``.

A compiled segment has no hooks of its own: there torch's selective activation checkpointing tells the compiler what it
may drop (``KEPT``), and its partition keeps of the rest what the backward reads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

KEPT = {
    "aten": (
        "mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_grouped_mm", "_scaled_mm",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    "autoplan": ("experts", "routed_experts"),
    "_c10d_functional": (
        "all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
    ),
}  # fmt: skip
"""Operators whose results a compiled segment keeps where its backward reads them, by namespace. What is to be gathered
again is gathered by another (``collectives.raw.gather_twice``). A collective's wait is none: on a result that has
arrived it is nothing, and it returns the same memory."""
_KEPT = frozenset(f"{space}.{name}.default" for space, names in KEPT.items() for name in names)


class Recipe:
    """How a result is computed again; while someone still has to read it, it stays.

    values  what the function takes: tensors, or tensors that have a recipe of their own (``Saved``)
    """

    def __init__(self, function: Callable[..., Tensor], values: tuple[Any, ...]) -> None:
        self.function, self.values = function, values
        self.readers = 0
        self.result: Tensor | None = None

    def read(self) -> Tensor:
        """The result; the last of its readers lets go of it."""
        result = self.result
        if result is None:
            given = [value.tensor() if isinstance(value, Saved) else value for value in self.values]
            with torch.no_grad():
                result = self.function(*given)
        self.readers -= 1
        self.result = result if self.readers > 0 else None
        return result


class Saved:
    """A tensor that the backward reads: as it is, or as a view of what a recipe gives."""

    def __init__(self, tensor: Tensor) -> None:
        self.kept: Tensor | None = tensor
        self.recipe: Recipe | None = None

    def settle(self, recipes: weakref.WeakKeyDictionary[torch.UntypedStorage, Recipe]) -> None:
        """Lets go of the tensor where its storage can be computed again."""
        if self.kept is None:
            return
        recipe = recipes.get(self.kept.untyped_storage())
        if recipe is None:
            return
        x, self.kept, self.recipe = self.kept, None, recipe
        self.view = (x.size(), x.stride(), x.storage_offset(), x.dtype)
        recipe.readers += 1
        if recipe.readers == 1:
            for value in recipe.values:
                if isinstance(value, Saved):
                    value.settle(recipes)

    def tensor(self) -> Tensor:
        if self.recipe is None:
            assert self.kept is not None
            return self.kept
        size, stride, offset, dtype = self.view
        result = self.recipe.read()
        return (result if result.dtype == dtype else result.view(dtype)).as_strided(size, stride, offset)


class Recipes:
    """What one run of a segment's forward may compute again."""

    def __init__(self) -> None:
        self.by_storage: weakref.WeakKeyDictionary[torch.UntypedStorage, Recipe] = weakref.WeakKeyDictionary()
        self.saved: list[Saved] = []

    def run(self, function: Callable[..., Tensor], values: tuple[Any, ...]) -> Tensor:
        """The function's result, from now on one that needn't be kept."""
        given = tuple(Saved(value.detach()) if isinstance(value, Tensor) else value for value in values)
        result = function(*values)
        storage = result.untyped_storage()
        if not any(isinstance(value, Tensor) and value.untyped_storage() is storage for value in values):
            self.by_storage[storage] = Recipe(function, given)
        return result

    def pack(self, tensor: Tensor) -> Saved:
        self.saved.append(Saved(tensor))
        return self.saved[-1]

    def settle(self) -> None:
        """At the forward's end: what can be computed again isn't kept. Not before, for an operator may save its own
        result, which is known only once it returns."""
        for saved in self.saved:
            saved.settle(self.by_storage)
        self.saved.clear()
        self.by_storage.clear()


def recomputable(segment: nn.Module, function: Callable[..., Tensor], *values: Any) -> Tensor:
    """``function(*values)``, dropped after the forward where the segment recomputes selectively.

    The function gives the same whenever it is called, and reads no tensor of the forward but its values.
    """
    recipes: Recipes | None = getattr(segment, "recipes", None)
    return function(*values) if recipes is None else recipes.run(function, values)


def keeps(segment: nn.Module) -> bool:
    """Whether a segment keeps what is dropped where it recomputes selectively."""
    return not getattr(segment, "recomputes", False)


def recompute_selectively(segments: Iterable[nn.Module]) -> None:
    """Makes the forward of each segment keep what is dear and compute the rest again in the backward.

    The forward, not the call, so that a compiled segment holds it whole and hooks that gather parameters stay outside.
    """
    for segment in segments:
        segment.recomputes = True  # type: ignore[assignment]
        segment.forward = selective(segment, segment.forward)


def selective(segment: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same forward, recomputed selectively."""

    def run(*inputs: Tensor) -> Any:
        if torch.compiler.is_compiling():
            return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
        with dropping(segment):
            return forward(*inputs)

    return run


@contextmanager
def dropping(segment: nn.Module) -> Iterator[None]:
    """Within it what the segment's backward reads is dropped where there is a recipe for it."""
    recipes = Recipes()
    segment.recipes = recipes  # type: ignore[assignment]
    try:
        with saved_tensors_hooks(recipes.pack, Saved.tensor):
            yield
    finally:
        del segment.recipes
    recipes.settle()


def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Whether a compiled segment keeps an operator's result. "Must", so that a compiler's own choice doesn't overrule
    it. By its name: an operator of ours is there only once what registers it is imported."""
    return CheckpointPolicy.MUST_SAVE if str(operator) in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


contexts = partial(create_selective_checkpoint_contexts, policy)
