"""The moments of a step at which a stage may hold most, and what it holds at each."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.arithmetic import Number, minimum
from cost_models.pipeline import weight_versions
from tests.bench.closed_form.transformer.elements import Elements, is_sharded, used_copies_bytes, used_element_bytes
from tests.bench.closed_form.transformer.layer import rows
from tests.bench.closed_form.transformer.losses import loss_bytes
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.bench.closed_form.transformer.saved import element_bytes, kept_bytes, layer_saved, stream_bytes, whole_bytes
from tests.bench.closed_form.transformer.states import ACCOUNTS, ModelStates

Parts = tuple[tuple[str, Number], ...]
"""Bytes by name."""


@dataclass(frozen=True)
class Moment:
    """What a rank holds at one moment of the step, in bytes, by name."""

    name: str
    parts: Parts

    @property
    def bytes(self) -> Number:
        return total(self.parts)

    def part(self, name: str) -> Number:
        """The bytes of a part; 0 where there is none of it."""
        return dict(self.parts).get(name, 0.0)


def total(parts: Parts) -> Number:
    """The bytes of all parts."""
    return sum((part for _, part in parts), start=0.0)


@dataclass(frozen=True)
class Held:
    """A stage, and what its moments are made of.

    states       as they lie between the collectives, in bytes
    activations  kept of all microbatches in flight, in bytes
    """

    model: Transformer
    recipe: Recipe
    stage: int
    elements: Elements
    states: ModelStates
    activations: Number

    @property
    def last(self) -> bool:
        return self.stage == self.recipe.pipeline - 1

    def moments(self) -> tuple[Moment, ...]:
        """The loss (last stage), the begin of a backward, the last reduction of gradients, the update."""
        return (*((self.loss(),) if self.last else ()), self.backward(), self.reduction(), self.update())

    def loss(self) -> Moment:
        """The last stage at its loss: its logits, and what the loss makes of them."""
        recipe = self.recipe
        columns = self.model.vocabulary / recipe.tensor
        logits = loss_bytes(rows(self.model, recipe), columns, element_bytes(recipe), recipe.loss, recipe.tensor > 1)
        return self._moment("loss", ("copies", used_copies_bytes(recipe, self.elements, 1)), ("logits", logits))

    def backward(self) -> Moment:
        """The first layer of a backward: what it makes again, its gradients, the next layer's parameters, and on the
        last stage the head's gradient."""
        whole = self.elements.layer + (self.elements.ends if self.last else 0)
        return self._moment(
            "backward",
            ("copies", used_copies_bytes(self.recipe, self.elements, 2)),
            ("working", self.working()),
            ("whole gradients", self._whole_gradients(whole)),
            ("gather", self._gather(0)),
            ("scatter", self._scatter(self.elements.layer)),
        )

    def reduction(self) -> Moment:
        """The last gradients are there, whole, and about to be reduced."""
        stay = self.gradients_before
        made = self.states.gradients_bytes - (0.0 if is_sharded(self.recipe) else stay)
        return Moment(
            "reduction",
            (
                *self.kept_states(),
                ("gradients", stay),
                ("gradient shards", made),
                ("messages", self.messages()),
                ("copies", used_copies_bytes(self.recipe, self.elements, 0)),
                ("whole gradients", self._whole_gradients(self.elements.ends)),
                ("scatter", self._scatter(self.elements.layer + self.elements.ends)),
            ),
        )

    def update(self) -> Moment:
        """The optimizer's step: states and gradients."""
        return Moment("update", (*self.kept_states(), ("gradient shards", self.states.gradients_bytes)))

    def kept_states(self) -> Parts:
        """What stands through the step whatever happens: the weights in so many versions, master, optimizer state."""
        versions = weight_versions(self.recipe.schedule, self.recipe.pipeline)[self.stage]
        return (
            ("parameters", self.states.parameters_bytes * versions),
            ("master", self.states.master_bytes),
            ("optimizer", self.states.optimizer_bytes),
        )

    @property
    def gradients_before(self) -> Number:
        """Gradients that stand when a microbatch begins: a buffer that stays (Megatron-LM's), or what earlier
        microbatches have summed; those of FSDP that waits with reducing are whole. Where all microbatches go through a
        chunk before the next chunk's turn, whole gradients are those of one chunk."""
        recipe, account = self.recipe, ACCOUNTS[self.recipe.account][self.recipe.precision]
        if is_sharded(recipe) and not recipe.gathers_each_microbatch:
            share = 1 / recipe.virtual_stages if recipe.microbatches <= recipe.pipeline else 1.0
            return share * account.gradient * self.elements.total if recipe.microbatches > 1 else 0.0
        stays = recipe.microbatches > 1 or recipe.account == "float32-gradients"
        return self.states.gradients_bytes if stays else 0.0

    def messages(self) -> Number:
        """The pipeline's: one tensor in and one out, or those of all microbatches both ways for each chunk, and on the
        last stage its outputs."""
        recipe = self.recipe
        if recipe.pipeline == 1:
            return 0.0
        one = stream_bytes(self.model, recipe)
        if not recipe.keeps_messages:
            return 2 * one
        outputs = recipe.microbatches * self._logits_bytes() if self.last else 0.0
        return 2 * recipe.microbatches * recipe.virtual_stages * one + outputs

    def again(self) -> Number:
        """What a layer's forward makes and doesn't keep: its working memory, and what its backward makes again. Under
        sequence parallelism also what is gathered for a product, unless it goes in pieces under it."""
        saved = layer_saved(self.model, self.recipe)
        everything = kept_bytes(saved, "none")
        kept = minimum(kept_bytes(saved, self.recipe.recompute), everything)
        return everything - kept + (self._exchanged() if self.recipe.regathers else 0.0)

    def working(self) -> Number:
        """A layer's backward at its widest: what it makes again, the gradients of its widest tensors (the inner ones,
        and two of the stream), and under sequence parallelism the gradient to be scattered."""
        model, recipe = self.model, self.recipe
        inner = model.top_k * model.expert_inner if model.experts else model.inner
        inner_bytes = element_bytes(recipe) * rows(model, recipe) * inner / recipe.tensor
        gradients = (3 if model.gated else 2) * inner_bytes + 2 * stream_bytes(model, recipe)
        return self.again() + gradients + self._exchanged()

    def streams(self) -> Parts:
        """FSDP2's own streams: gathers copy into a buffer (a layer's beside the ends'), and reductions leave the shards
        of gradients (PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
        if not is_sharded(self.recipe):
            return ()
        return (("gather", self._gather(self.elements.ends)), ("gradient shards", self.states.gradients_bytes))

    def fragments(self) -> Parts:
        """Free at the loss, in segments too small for it: the forward's working memory of a layer; of a loss in eager
        the logits before they were cast; the outputs that the pipeline's engine joined at the end of the step before.
        """
        if not self.last:
            return ()
        recipe, logits = self.recipe, self._logits_bytes()
        joined = recipe.microbatches * logits if recipe.pipeline > 1 and recipe.keeps_messages else 0.0
        cast = logits if recipe.loss == "eager" else 0.0
        return (("forward", self.again()), ("logits", cast), ("joined outputs", joined))

    def _moment(self, name: str, *parts: tuple[str, Number]) -> Moment:
        held = (("gradients", self.gradients_before), ("activations", self.activations), ("messages", self.messages()))
        return Moment(name, (*self.kept_states(), *held, *parts))

    def _exchanged(self) -> Number:
        """A tensor with all of the rank's rows, as the tensor axis gathers and scatters it under sequence parallelism;
        nothing where that goes in pieces."""
        whole = self.recipe.sequence_parallel and not self.recipe.overlaps_tensor
        return whole_bytes(self.model, self.recipe) if whole else 0.0

    def _logits_bytes(self) -> Number:
        split = self.model.vocabulary / self.recipe.tensor
        return element_bytes(self.recipe) * rows(self.model, self.recipe) * split

    def _whole_gradients(self, elements: Number) -> Number:
        """Before they are shared out, where the data axis shares gradients."""
        return element_bytes(self.recipe) * elements if self.recipe.zero >= 2 else 0.0

    def _gather(self, ends: Number) -> Number:
        if not is_sharded(self.recipe):
            return 0.0
        return used_element_bytes(self.recipe) * self.elements.layer + element_bytes(self.recipe) * ends

    def _scatter(self, elements: Number) -> Number:
        """The reductions' input in its own precision."""
        return self.recipe.gradient_bytes * elements if self.recipe.zero >= 2 else 0.0
