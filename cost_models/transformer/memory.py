"""The bytes of a transformer's training step on each stage: states, activations in flight, and when they peak.

A stage holds its layers' states through the step. What else it holds is greatest at one of a few moments: at the loss,
where the last stage has its logits; when a backward begins, with everything saved; when the last gradients are reduced;
at the update. ``StageBytes`` names the parts at each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.arithmetic import Number, maximum
from cost_models.memory import ACCOUNTS, ModelStates, loss_bytes, state_bytes
from cost_models.pipeline import in_flight, weight_versions
from cost_models.transformer.layer import rows
from cost_models.transformer.model import Recipe, Transformer
from cost_models.transformer.saved import (
    element_bytes,
    embedding_saved_bytes,
    head_saved_bytes,
    kept_bytes,
    layer_saved,
    layer_saved_bytes,
    stream_bytes,
)

FLOAT8 = 1
"""Bytes of an 8 bit element."""


@dataclass(frozen=True)
class Elements:
    """Parameter elements on one rank of a stage before the data axis shares them out.

    layers    of the stage's layers but the experts
    experts   of their experts
    ends      of the embedding (first stage), the head and the last norm (last stage)
    """

    layers: Number
    experts: Number
    ends: Number

    @property
    def total(self) -> Number:
        return self.layers + self.experts + self.ends


@dataclass(frozen=True)
class Moment:
    """What a rank holds at one moment of the step, in bytes, by name."""

    name: str
    parts: tuple[tuple[str, Number], ...]

    @property
    def bytes(self) -> Number:
        return sum((part for _, part in self.parts), start=0.0)

    def part(self, name: str) -> Number:
        """The bytes of a part; 0 where there is none of it."""
        return dict(self.parts).get(name, 0.0)


@dataclass(frozen=True)
class StageBytes:
    """The bytes of one rank of a stage.

    stage        from 0
    states       parameters, gradients, master and optimizer state as they lie between the collectives
    activations  what is kept of all microbatches in flight
    moments      the parts that are held at the loss (last stage), at the begin of a backward, when the last gradients
                 are reduced, and at the update
    streams      what collectives hold in memory of their own: an allocator doesn't lend what one stream has freed to
                 another, so it adds to what is reserved whenever it was used
    steady       between two steps
    """

    stage: int
    states: ModelStates
    activations: Number
    moments: tuple[Moment, ...]
    streams: tuple[tuple[str, Number], ...]
    steady: Number

    @property
    def peak_bytes(self) -> Number:
        """The most that tensors take at once."""
        return maximum(*(moment.bytes for moment in self.moments))

    @property
    def peak(self) -> Moment:
        """The moment that holds most (of plain numbers)."""
        return max(self.moments, key=lambda moment: float(moment.bytes))

    @property
    def reserved_bytes(self) -> Number:
        """What the allocator takes from the device: the peak of the stream that computes, and of each other."""
        names = dict(self.streams)
        main = [sum((p for name, p in moment.parts if name not in names), start=0.0) for moment in self.moments]
        return maximum(*main) + sum(names.values(), start=0.0)


def stages_bytes(
    model: Transformer, recipe: Recipe, stage_layers: Sequence[Number] | None = None
) -> tuple[StageBytes, ...]:
    """Every stage's bytes.

    stage_layers  layers of each stage (None: the same share of all); a ``ValueError`` where they aren't one a stage
    """
    layers = [model.layers / recipe.pipeline] * recipe.pipeline if stage_layers is None else list(stage_layers)
    if len(layers) != recipe.pipeline:
        raise ValueError(f"{len(layers)} numbers of layers for {recipe.pipeline} stages")
    return tuple(_stage(model, recipe, stage, held) for stage, held in enumerate(layers))


def peak_bytes(model: Transformer, recipe: Recipe, stage_layers: Sequence[Number] | None = None) -> Number:
    """The most bytes of tensors that any stage holds at once."""
    return maximum(*(stage.peak_bytes for stage in stages_bytes(model, recipe, stage_layers)))


# -- states -----------------------------------------------------------------------------------------------------------


def stage_elements(model: Transformer, recipe: Recipe, stage: int, layers: Number) -> Elements:
    """Parameter elements on one rank. Matrices, the embedding and the biases of what they split by columns are split
    over the tensor axis; norms, the biases after a reduction, learned positions and routers are whole. A tied head
    apart from its embedding is a copy."""
    first, last = stage == 0, stage == recipe.pipeline - 1
    norm = model.hidden * (2 if model.bias else 1)
    ends: Number = 0.0
    if first:
        ends = model.embedding_parameters / recipe.tensor
        ends += model.sequence * model.hidden if model.positions == "learned" else 0
    if last:
        ends += norm + (0 if model.tied and first else model.embedding_parameters / recipe.tensor)
    return Elements(layers * _layer_elements(model, recipe), layers * _expert_elements(model, recipe), ends)


def _layer_elements(model: Transformer, recipe: Recipe) -> Number:
    """One layer's, but its experts."""
    wide = model.inner * (2 if model.gated else 1)
    split = model.hidden * (2 * model.query_width + 2 * model.key_width)
    split += 0 if model.experts else model.feed_forward_matrices * model.hidden * model.inner
    whole = 2 * model.hidden * (2 if model.bias else 1) + (model.hidden * model.experts if model.experts else 0)
    if model.bias:
        split += model.query_width + 2 * model.key_width + (0 if model.experts else wide)
        whole += model.hidden * (1 if model.experts else 2)
    return split / recipe.tensor + whole


def _expert_elements(model: Transformer, recipe: Recipe) -> Number:
    """One layer's experts, shared out over the expert axis, each split over ``expert_tensor``."""
    one = model.feed_forward_matrices * model.hidden * model.expert_inner
    return model.experts * one / (recipe.expert * recipe.expert_tensor)


def _states(model: Transformer, recipe: Recipe, elements: Elements) -> ModelStates:
    """The data and context axes share the states of all but the experts, whose own data axis is what the expert axes
    leave of tensor · context · data."""
    ranks = recipe.data * recipe.context
    expert_ranks = max(1, recipe.tensor * ranks // (recipe.expert * recipe.expert_tensor))
    account = ACCOUNTS[recipe.account]
    sizes = ((elements.layers + elements.ends, ranks), (elements.experts, expert_ranks))
    # a matrix's rows and columns, of matrices h by h as the layers' are on the whole
    dense, experts = (
        state_bytes(
            size, recipe.precision, recipe.optimizer, recipe.zero, shared, account, recipe.offload,
            2 * size / model.hidden,
        )
        for size, shared in sizes
    )  # fmt: skip
    return dense + experts


# -- a stage ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stage:
    """What the moments of a stage are made of, in bytes."""

    model: Transformer
    recipe: Recipe
    stage: int
    layers: Number
    elements: Elements
    states: ModelStates
    activations: Number

    @property
    def last(self) -> bool:
        return self.stage == self.recipe.pipeline - 1

    @property
    def layer_elements(self) -> Number:
        """Of one layer, its experts among them."""
        return _layer_elements(self.model, self.recipe) + _expert_elements(self.model, self.recipe)

    @property
    def sharded(self) -> bool:
        """Parameters are shared out and gathered for each use."""
        return self.recipe.zero == 3

    @property
    def copied(self) -> bool:
        """Parameters are used in another precision than they are stored in, or gathered: a copy is made."""
        return self.sharded or (self.recipe.account == "float32-stored" and "mixed" in self.recipe.precision)

    @property
    def gathered_element_bytes(self) -> int:
        """Of a layer's parameter as it is gathered."""
        return FLOAT8 if self.recipe.matmul == "float8" else element_bytes(self.recipe)

    @property
    def accumulates(self) -> bool:
        return self.recipe.microbatches > 1

    @property
    def kept_states(self) -> tuple[tuple[str, Number], ...]:
        versions = weight_versions(self.recipe.schedule, self.recipe.pipeline)[self.stage]
        return (
            ("parameters", self.states.parameters_bytes * versions),
            ("master", self.states.master_bytes),
            ("optimizer", self.states.optimizer_bytes),
        )

    @property
    def gradients(self) -> Number:
        return self.states.gradients_bytes

    @property
    def gradients_before(self) -> Number:
        """Those that stand when a microbatch begins: a buffer that stays (Megatron-LM's), or what earlier microbatches
        have summed; those of FSDP that waits with reducing are whole."""
        account = ACCOUNTS[self.recipe.account][self.recipe.precision]
        if self.sharded and not self.recipe.gathers_each_microbatch:
            return account.gradient * self.elements.total if self.accumulates else 0.0
        return self.gradients if self.accumulates or self.recipe.account == "float32-gradients" else 0.0

    def gathered(self, layers: int) -> Number:
        """Copies of parameters in the precision of their use: the ends' and of so many layers, or all of them."""
        if not self.copied:
            return 0.0
        ends = element_bytes(self.recipe) * self.elements.ends
        whole = self.gathered_element_bytes * (self.elements.layers + self.elements.experts)
        if not self.sharded or not self.recipe.gathers_each_microbatch:
            return ends + whole
        return ends + layers * self.gathered_element_bytes * self.layer_elements

    @property
    def messages(self) -> Number:
        """The pipeline's: one tensor in and one out of each chunk, or those of all microbatches both ways, and on the
        last stage its outputs."""
        if self.recipe.pipeline == 1:
            return 0.0
        one = stream_bytes(self.model, self.recipe)
        if not self.recipe.keeps_messages:
            return 2 * one
        kept = 2 * self.recipe.microbatches * self.recipe.virtual_stages * one
        return kept + (self.recipe.microbatches * self._logits * element_bytes(self.recipe) if self.last else 0.0)

    @property
    def _logits(self) -> Number:
        return rows(self.model, self.recipe) * self.model.vocabulary / self.recipe.tensor

    def loss(self) -> Moment:
        """The last stage at its loss, every layer of its microbatches in flight gone forward."""
        tokens, columns = rows(self.model, self.recipe), self.model.vocabulary / self.recipe.tensor
        logits = loss_bytes(
            tokens, columns, element_bytes(self.recipe), self.recipe.loss, self.recipe.tensor > 1
        )
        return self._moment("loss", ("gathered", self.gathered(1)), ("logits", logits))

    def backward(self) -> Moment:
        """The first layer of a backward: what it computes again, its gradients, the next layer's parameters; on the
        last stage the head's gradient is there."""
        split = element_bytes(self.recipe) * self.layer_elements if self.sharded else 0.0
        head = element_bytes(self.recipe) * self.elements.ends if self.sharded and self.last else 0.0
        return self._moment(
            "backward",
            ("gathered", self.gathered(2)),
            ("working", self.working()),
            ("whole gradients", split + head),
            ("gather", self._gather() if self.sharded else 0.0),
            ("scatter", self._scatter() if self.sharded else 0.0),
        )

    def reduction(self) -> Moment:
        """The last gradients are there, whole, and about to be reduced."""
        whole = element_bytes(self.recipe) * self.elements.ends if self.sharded else 0.0
        return Moment(
            "reduction",
            (
                *self.kept_states,
                ("gradients", maximum(self.gradients, self.gradients_before)),
                ("gathered", self.gathered(0)),
                ("whole gradients", whole),
                ("scatter", self._scatter() + self._ends_scatter() if self.sharded else 0.0),
                ("messages", self.messages),
            ),
        )

    def update(self) -> Moment:
        """The optimizer's step: states and gradients."""
        return Moment("update", (*self.kept_states, ("gradients", self.gradients)))

    def working(self) -> Number:
        """A layer's backward at its widest: what it computes again beside what it kept, the gradients of its widest
        tensors (the inner ones, and two of the stream), and under sequence parallelism the gathered input with the
        gradient to be scattered, which stand whole unless they go in pieces under the products."""
        model, recipe = self.model, self.recipe
        saved = layer_saved(model, recipe)
        again = kept_bytes(saved, "none") - kept_bytes(saved, recipe.recompute)
        size = element_bytes(recipe) * rows(model, recipe)
        inner = size * (model.top_k * model.expert_inner if model.experts else model.inner) / recipe.tensor
        whole = 2 * size * model.hidden if recipe.sequence_parallel and not recipe.overlaps_tensor else 0.0
        gradients = (3 if model.gated else 2) * inner + 2 * stream_bytes(model, recipe)
        return maximum(0.0, again) + gradients + whole

    def streams(self) -> tuple[tuple[str, Number], ...]:
        """FSDP2's own streams: the buffers of gathers and reductions, a layer's beside the ends', and the shards of
        gradients, which the reductions make."""
        if not self.sharded:
            return ()
        gather = self._gather() + element_bytes(self.recipe) * self.elements.ends
        scatter = self._scatter() + self._ends_scatter()
        return (("gather", gather), ("scatter", scatter), ("gradients", self.gradients))

    def _gather(self) -> Number:
        return self.gathered_element_bytes * self.layer_elements

    def _scatter(self) -> Number:
        return self.recipe.gradient_bytes * self.layer_elements

    def _ends_scatter(self) -> Number:
        return self.recipe.gradient_bytes * self.elements.ends

    def _moment(self, name: str, *parts: tuple[str, Number]) -> Moment:
        held = (("gradients", self.gradients_before), ("activations", self.activations), ("messages", self.messages))
        return Moment(name, (*self.kept_states, *held, *parts))


def _stage(model: Transformer, recipe: Recipe, stage: int, layers: Number) -> StageBytes:
    elements = stage_elements(model, recipe, stage, layers)
    states = _states(model, recipe, elements)
    held = _Stage(model, recipe, stage, layers, elements, states, _activations(model, recipe, stage, layers))
    moments = (*((held.loss(),) if held.last else ()), held.backward(), held.reduction(), held.update())
    buffer = states.gradients_bytes if recipe.account == "float32-gradients" else 0.0
    steady = sum((part for _, part in held.kept_states), start=0.0) + buffer
    return StageBytes(stage, states, held.activations, moments, held.streams(), steady)


def _activations(model: Transformer, recipe: Recipe, stage: int, layers: Number) -> Number:
    """What the layers keep of every chunk in flight, the embedding's of each microbatch, the head's of one."""
    chunks = in_flight(recipe.schedule, recipe.pipeline, recipe.microbatches, recipe.virtual_stages)[stage]
    held = chunks * layers / recipe.virtual_stages * layer_saved_bytes(model, recipe)
    if stage == 0:
        held = held + min(chunks, recipe.microbatches) * embedding_saved_bytes(model, recipe)
    if stage == recipe.pipeline - 1:
        held = held + head_saved_bytes(model, recipe)
    return held
