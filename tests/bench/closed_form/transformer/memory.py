"""The bytes of a transformer's training step on each stage: states, activations in flight, and when they peak.

A stage holds its layers' states through the step. What else it holds is greatest at one of a few moments: at the loss,
where the last stage has its logits; when a backward begins, with everything saved; when the last gradients are reduced;
at the update. ``StageBytes`` names the parts at each. ``elements`` counts parameters, ``saved`` what operators keep,
``moments`` what stands when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_models.arithmetic import Number, maximum
from cost_models.pipeline import in_flight
from tests.bench.closed_form.transformer.elements import stage_elements, stage_states
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.moments import Held, Moment, Parts, total
from tests.bench.closed_form.transformer.saved import embedding_saved_bytes, head_saved_bytes, layer_saved_bytes
from tests.bench.closed_form.transformer.states import ModelStates


@dataclass(frozen=True)
class StageBytes:
    """The bytes of one rank of a stage.

    stage        from 0
    states       parameters, gradients, master and optimizer state as they lie between the collectives
    activations  what is kept of all microbatches in flight
    moments      the parts that are held at the loss (last stage), at the begin of a backward, when the last gradients
                 are reduced, and at the update
    streams      what collectives allocate on streams of their own, which others can't use though it is free
    fragments    what stands free at the loss in segments too small for it
    steady       between two steps, gradients let go but for a buffer that stays
    """

    stage: int
    states: ModelStates
    activations: Number
    moments: tuple[Moment, ...]
    streams: Parts
    fragments: Parts
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
        """What PyTorch's caching allocator takes from the device, in segments that neither merge nor change streams.

        The peak of the stream that computes; of the other streams each its own; and at the loss what stands free
        (a segment is as large as the tensor that it was made for, the loss's are larger than any before them). With
        expandable segments it is less: the peak and the streams.
        """
        main = [self._main(moment) + (total(self.fragments) if moment.name == "loss" else 0) for moment in self.moments]
        return maximum(*main) + total(self.streams)

    def _main(self, moment: Moment) -> Number:
        elsewhere = dict(self.streams)
        return total(tuple((name, part) for name, part in moment.parts if name not in elsewhere))


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


def reserved_bytes(model: Transformer, recipe: Recipe, stage_layers: Sequence[Number] | None = None) -> Number:
    """The most bytes that the allocator takes from the device on any stage (``StageBytes.reserved_bytes``)."""
    return maximum(*(stage.reserved_bytes for stage in stages_bytes(model, recipe, stage_layers)))


def _stage(model: Transformer, recipe: Recipe, stage: int, layers: Number) -> StageBytes:
    elements = stage_elements(model, recipe, stage, layers)
    states = stage_states(model, recipe, elements)
    held = Held(model, recipe, stage, elements, states, _activations(model, recipe, stage, layers))
    buffer = states.gradients_bytes if recipe.account == "float32-gradients" else 0.0
    steady = total(held.kept_states()) + buffer
    return StageBytes(stage, states, held.activations, held.moments(), held.streams(), held.fragments(), steady)


def _activations(model: Transformer, recipe: Recipe, stage: int, layers: Number) -> Number:
    """What the layers keep of every chunk in flight, the embedding's of each microbatch, the head's of one."""
    chunks = in_flight(recipe.schedule, recipe.pipeline, recipe.microbatches, recipe.virtual_stages)[stage]
    held = chunks * layers / recipe.virtual_stages * layer_saved_bytes(model, recipe)
    if stage == 0:
        held = held + min(chunks, recipe.microbatches) * embedding_saved_bytes(model, recipe)
    if stage == recipe.pipeline - 1:
        held = held + head_saved_bytes(model, recipe)
    return held
