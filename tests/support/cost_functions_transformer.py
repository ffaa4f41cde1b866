"""The rows of tests/support/cost_functions.py for a transformer's step: nine recipes, and what their steps are made
of."""

from __future__ import annotations

import dataclasses

from cost_models.arithmetic import Number
from cost_models.hardware import Topology
from cost_models.sensitivity import with_bandwidth
from tests.bench.closed_form.transformer import elements, layer, moments, parts, saved, step
from tests.bench.closed_form.transformer import memory as stage_memory
from tests.bench.closed_form.transformer.model import Recipe, Transformer
from tests.support.cost_functions import CLUSTER, H100, Price, sized

LLAMA = Transformer(4096, 32, 32, 4096, 128256, kv_heads=8, ffn=14336, gated=True, tied=False, bias=False, norm="rms",
                    positions="rotary")  # fmt: skip
GPT = Transformer(4096, 32, 32, 2048, 51200, dropout=True)
MIXTURE = dataclasses.replace(LLAMA, experts=8, top_k=2)
RECIPES: dict[str, tuple[Transformer, Recipe]] = {
    "ZeRO-3": (LLAMA, Recipe(data=64, zero=3, compiled=True, account="float32-stored", gradient_bytes=4)),
    "ZeRO-2, eager": (LLAMA, Recipe(data=64, zero=2)),
    "tensor and sequence": (LLAMA, Recipe(tensor=8, data=8, zero=1, sequence_parallel=True, recompute="selective")),
    "context, 8 bit": (LLAMA, Recipe(context=4, data=16, matmul="float8", compiled=True, recompute="operators")),
    "unfused": (GPT, Recipe(tensor=4, data=16, fused_attention=False, recompute="full", overlaps_gradients=False)),
    "pipeline": (GPT, Recipe(tensor=2, data=8, pipeline=4, microbatches=8, zero=1, loss="in place")),
    "interleaved": (GPT, Recipe(tensor=8, data=2, pipeline=4, microbatches=8, schedule="interleaved", virtual_stages=2,
                                sequence_parallel=True)),
    "zero bubble": (LLAMA, Recipe(tensor=8, data=2, pipeline=4, microbatches=8, schedule="zero-bubble")),
    "mixture": (MIXTURE, Recipe(data=64, expert=8, zero=1, compiled=True)),
}  # fmt: skip
TOKENS = (("sequence", 64, 65536), ("micro_batch", 1, 64))
SPEED = ("speed", 0.1, 10)


def trained(name: str, sequence: Number, micro_batch: Number) -> tuple[Transformer, Recipe]:
    model, recipe = RECIPES[name]
    return dataclasses.replace(model, sequence=sequence), dataclasses.replace(recipe, micro_batch=micro_batch)


def priced(name: str, *sizes: Number) -> tuple[Transformer, Recipe, Topology]:
    sequence, micro_batch, speed = sizes
    return (*trained(name, sequence, micro_batch), with_bandwidth(CLUSTER, 1, speed))


def both(passes: step.Passes | layer.Operator) -> tuple[Number, Number]:
    return passes.forward_s, passes.backward_s


def steps() -> tuple[Price, ...]:
    sizes = (*TOKENS, SPEED)
    rows = []
    for name in RECIPES:
        def layered(*s, name=name):
            return both(step.layer_passes(*priced(name, *s)))

        def staged(*s, name=name):
            given = priced(name, *s)
            return tuple(time for stage in step.stage_passes(*given, step.Passes(1e-3, 2e-3)) for time in both(stage))

        rows += [
            Price(f"step.step_seconds, {name}", step.step_seconds, sizes,
                  lambda *s, name=name: step.step_seconds(*priced(name, *s), closed_form=True).seconds, "seconds",
                  ("speed",)),
            Price(f"layer_passes, {name}", step.layer_passes, sizes, layered, "seconds", ("speed",)),
            Price(f"stage_passes, {name}", step.stage_passes, sizes, staged, "seconds", ("speed",)),
            Price(f"peak_bytes, {name}", stage_memory.peak_bytes, TOKENS,
                  lambda *s, name=name: stage_memory.peak_bytes(*trained(name, *s)), "bytes"),
            Price(f"reserved_bytes, {name}", stage_memory.reserved_bytes, TOKENS,
                  lambda *s, name=name: stage_memory.reserved_bytes(*trained(name, *s)), "bytes"),
        ]  # fmt: skip
    return (*rows, *once_a_step(), *layers())


def once_a_step() -> tuple[Price, ...]:
    """What isn't a microbatch's, by the width of the feed-forward, at a backward of 10 ms."""
    busy = step.Passes(5e-3, 10e-3)
    wide, fast = ("ffn", 256, 65536), ("speed", 0.1, 10)
    dense, recipe = dataclasses.replace(LLAMA, layers=4), Recipe(data=64, zero=1)

    def again(sequence, micro_batch):
        model, given = trained("tensor and sequence", sequence, micro_batch)
        parts = layer.layer_operators(model, given, H100)
        return step.recompute_s(model, given, CLUSTER, parts, busy)

    def exposed(ffn, speed, recipe=recipe):
        model = dataclasses.replace(dense, ffn=ffn)
        return step.exposed_gradients_s(model, recipe, with_bandwidth(CLUSTER, 1, speed), busy)

    mixture = dataclasses.replace(dense, experts=8, top_k=2)

    def held(found):
        return tuple(part.elements for part in found)

    return (
        Price("recompute_s", step.recompute_s, TOKENS, again, "seconds"),
        Price("overlapped_s", step.overlapped_s, (("compute_s", 1e-6, 1), ("comm_s", 1e-6, 1), ("slowdown", 1e-3, 1)),
              step.overlapped_s, "seconds"),
        Price("exposed_gradients_s", step.exposed_gradients_s, (wide, fast), exposed, "seconds", ("speed",),
              alone=lambda ffn, speed: exposed(ffn, speed, Recipe())),
        Price("exposed_gradients_s, no overlap", step.exposed_gradients_s, (wide, fast),
              lambda *s: exposed(*s, Recipe(data=64, overlaps_gradients=False)), "seconds", ("speed",)),
        Price("exchange_s", step.exchange_s, (*TOKENS, SPEED), lambda *s: step.exchange_s(*priced("mixture", *s)),
              "seconds", ("speed",), alone=lambda *s: step.exchange_s(*priced("ZeRO-3", *s))),
        Price("update_s", step.update_s, (wide,),
              lambda ffn: step.update_s(dataclasses.replace(dense, ffn=ffn), recipe, CLUSTER), "seconds"),
        Price("layer_parts", parts.layer_parts, (wide,),
              lambda ffn: held(parts.layer_parts(dataclasses.replace(mixture, ffn=ffn), recipe, CLUSTER)), "elements"),
        Price("stage_parts", parts.stage_parts, (wide,),
              lambda ffn: held(parts.stage_parts(dataclasses.replace(mixture, ffn=ffn), recipe, CLUSTER)), "elements"),
        Price("model_flops", step.model_flops, TOKENS, lambda *s: step.model_flops(*trained("ZeRO-3", *s)), "FLOPs",
              nothing=("sequence", "micro_batch")),
        Price("waiting", step.waiting, (("straggler", 1e-4, 1),), waits, "share"),
    )  # fmt: skip


def waits(straggler: Number) -> Number:
    device = dataclasses.replace(H100, straggler_per_doubling=straggler)
    return step.waiting(Recipe(data=64), dataclasses.replace(CLUSTER, device=device))


def layers() -> tuple[Price, ...]:
    """The operators of a layer, and what they keep and hold."""
    def rows_of(function, name="tensor and sequence"):
        return lambda *s: function(*trained(name, *s))

    def timed(function, name):
        def call(*s):
            found = function(*trained(name, *s), H100)
            return tuple(time for part in (found if isinstance(found, tuple) else (found,)) for time in both(part))
        return call

    def counted(sequence, micro_batch, hidden):
        model = dataclasses.replace(GPT, hidden=hidden, sequence=sequence)
        return model, Recipe(tensor=2, micro_batch=micro_batch, data=32, zero=3)

    def part(function):
        def call(sequence, micro_batch, hidden):
            model, recipe = counted(sequence, micro_batch, hidden)
            return function(model, recipe, elements.stage_elements(model, recipe, 0, 4))
        return call

    hidden = (*TOKENS, ("hidden", 512, 16384))
    recipe = RECIPES["context, 8 bit"][1]
    tokens = ("sequence", "micro_batch")
    return (
        *(Price(f"layer_operators, {name}", layer.layer_operators, TOKENS, timed(layer.layer_operators, name),
                "seconds") for name in RECIPES),
        Price("linear", layer.linear, sized("m", "n", "k"),
              lambda *s: both(layer.linear("up", *s, True, Recipe(), H100)), "seconds", nothing=("m", "n")),
        Price("linear, 8 bit", layer.linear, sized("m", "n", "k"),
              lambda *s: both(layer.linear("up", *s, False, recipe, H100)), "seconds"),
        Price("norm", layer.norm, TOKENS, timed(lambda m, r, d: layer.norm("norm", m, r, d), "unfused"), "seconds",
              nothing=tokens),
        Price("head_operators", layer.head_operators, TOKENS, timed(layer.head_operators, "ZeRO-3"), "seconds",
              nothing=tokens),
        Price("embedding_operator", layer.embedding_operator, TOKENS, timed(layer.embedding_operator, "unfused"),
              "seconds", nothing=tokens),
        Price("rows", layer.rows, TOKENS, rows_of(layer.rows), "elements", nothing=tokens),
        Price("activation_message_bytes", layer.activation_message_bytes, TOKENS,
              rows_of(layer.activation_message_bytes), "bytes", nothing=tokens),
        *(Price(f"{function.__name__}, {name}", function, TOKENS, rows_of(function, name), "bytes", nothing=tokens)
          for function in (saved.stream_bytes, saved.whole_bytes, saved.layer_saved_bytes, saved.embedding_saved_bytes,
                           saved.head_saved_bytes)
          for name in ("tensor and sequence", "unfused", "mixture")),
        Price("layer_saved", saved.layer_saved, TOKENS,
              lambda *s: tuple(each.bytes for each in saved.layer_saved(*trained("ZeRO-3", *s))), "bytes"),
        Price("kept_bytes", saved.kept_bytes, TOKENS,
              lambda *s: saved.kept_bytes(saved.layer_saved(*trained("ZeRO-3", *s)), "full"), "bytes"),
        Price("stages_bytes", stage_memory.stages_bytes, TOKENS,
              lambda *s: tuple(each.activations for each in stage_memory.stages_bytes(*trained("pipeline", *s))),
              "bytes"),
        Price("total", moments.total, sized("first", "second"),
              lambda *s: moments.total(tuple(zip("ab", s, strict=True))), "bytes"),
        Price("stage_elements", elements.stage_elements, hidden, part(lambda m, r, held: held.total), "elements"),
        Price("stage_states", elements.stage_states, hidden,
              part(lambda m, r, held: elements.stage_states(m, r, held).total_bytes), "bytes"),
        Price("used_copies_bytes", elements.used_copies_bytes, hidden,
              part(lambda m, r, held: elements.used_copies_bytes(r, held, 2)), "bytes"),
    )  # fmt: skip


STEP_PRICES = steps()
