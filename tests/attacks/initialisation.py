"""Attacks on where training starts from."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import autoplan
from autoplan import cli
from autoplan.options import Parallelism, Training
from autoplan.trace.initialise import given, recipe_check
from tests.attacks import initial_models as made
from tests.attacks.attack import Attack, Lost, Place, Silent, contents, equal, refused, refused_command, unharmed
from tests.support.planning import parallelize_unproved

RANKS = 2
TRAINING = Training(compile=False)
SPLIT = Parallelism(dp=RANKS, tp=1, pp=1)
FILE = """from tests.attacks.initial_models import Own, batch as example_inputs
from torch.nn.functional import mse_loss as loss_fn
"""


def planned(model: object, **options: object) -> autoplan.Plan:
    given = {"loss_fn": nn.functional.mse_loss, "training": TRAINING, "parallelism": SPLIT, **options}
    batch = given.pop("batch", None) or made.batch()
    return parallelize_unproved(model, f"1x{RANKS} cpu", batch, **given)


def begun(rank: int, world: int, folder: str, arguments: dict) -> Mapping[str, Tensor]:
    """The state dict after init_weights; "rank" in an argument is the rank."""
    with autoplan.load(folder).program() as program:
        program.init_weights(**{key: rank if value == "rank" else value for key, value in arguments.items()})
        return dict(program.full_state_dict())


def starts(place: Place, folder: Path, **arguments: object) -> Mapping[str, Tensor]:
    return place.pools.of(RANKS).run(begun, str(folder), arguments)[0]


def same(found: Mapping[str, Tensor], model: nn.Module, what: str) -> str:
    wanted = model.state_dict()
    other = [name for name, value in wanted.items() if not torch.equal(found[name], value.to(found[name].dtype))]
    return equal(not other, f"{what}: {', '.join(other) or 'bit for bit'}")


def of_seed(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def from_function(make: Callable[[], nn.Module], place: Place, seed: int = 3) -> str:
    folder = planned(make).export(place.folder / "out")
    return same(starts(place, folder, seed=seed), of_seed(make, seed), f"make_model() under seed {seed}")


def from_module(make: Callable[[], nn.Module], place: Place) -> str:
    model = of_seed(make, 11)
    folder = planned(model).export(place.folder / "out")
    return same(starts(place, folder), model, "the values that were handed over")


def kept_or_refused(make: Callable[[], nn.Module], place: Place) -> str:
    """A function that can't be recorded: its values of seed 0, no other seed."""
    folder = planned(make).export(place.folder / "out")
    wanted = of_seed(make, 0)
    same(starts(place, folder, seed=0), wanted, "seed 0")
    same(starts(place, folder), wanted, "no seed")
    return refused(lambda: starts(place, folder, seed=1), "ran once, under seed 0", "call init_weights()")


def not_the_same_again(make: Callable[[], nn.Module], place: Place) -> str:
    return refused(lambda: planned(make), "run twice under one seed", "give the module")


def seed_of_values(place: Place) -> str:
    folder = planned(made.Own()).export(place.folder / "out")
    return refused(lambda: starts(place, folder, seed=0), "values of its own", "call init_weights()", "make_model")


def nothing_known(place: Place) -> str:
    folder = planned(made.on_meta()).export(place.folder / "out")
    return refused(lambda: starts(place, folder, seed=0), "nothing is known", "make_model", "--weights")


def told_first(make: Callable[[], nn.Module], word: str, place: Place, call: bool = True) -> str:
    """In the report's first lines, and before train.py starts."""
    plan = planned(make() if call else make)
    head = " ".join(plan.report(verbose=True).split("\n\n")[0].split()[:60])
    if "UNKNOWN" not in head or word not in head:
        raise Silent(f"the report begins {head!r}")
    folder = plan.export(place.folder / "out")
    return refused(lambda: autoplan.load(folder).check_start(), word, "--weights", "make_model")


def resets_of_a_function(place: Place) -> str:
    folder = planned(made.Own).export(place.folder / "out")
    return refused(lambda: starts(place, folder, reset_parameters=True), "leave reset_parameters out")


def resets_by_name(place: Place) -> str:
    folder = planned(made.on_meta()).export(place.folder / "out")
    return refused(lambda: starts(place, folder, seed=0, reset_parameters=True), "scale", "no reset_parameters fills")


def other_seeds(place: Place) -> str:
    folder = planned(made.Own).export(place.folder / "out")
    return refused(lambda: starts(place, folder, seed="rank"), "rank 0 asks for seed=0, rank 1 for seed=1")


def flipped(place: Place) -> str:
    folder = planned(made.Own()).export(place.folder / "out")
    file = folder / "weights" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    return refused(lambda: starts(place, folder), "other bytes", "copy the folder again")


def removed(place: Place) -> str:
    folder = planned(made.Own()).export(place.folder / "out")
    (folder / "weights" / "model.safetensors").unlink()
    return refused(lambda: starts(place, folder), "it is missing", "copy the folder again")


def another_s(place: Place) -> str:
    """The weights folder of another export of the same model, as a copy that went wrong."""
    one, other = (planned(of_seed(made.Own, seed)).export(place.folder / str(seed)) for seed in (1, 2))
    (other / "weights" / "model.safetensors").replace(one / "weights" / "model.safetensors")
    return refused(lambda: starts(place, one), "other bytes")


def written_over(place: Place) -> str:
    """A user's trained weights lie where an export writes."""
    plan = planned(made.Own())
    own = place.folder / "out" / "weights" / "model.safetensors"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"a week of training")
    before = contents(place.folder)
    said = refused(lambda: plan.export(place.folder / "out"), "it isn't what an export wrote", "move it away")
    unharmed(before, place.folder)
    return said


def exported_again(place: Place) -> str:
    """A second export into its own folder replaces the first one's values, and leaves what lies beside them."""
    folder = planned(of_seed(made.Own, 1)).export(place.folder / "out")
    (folder / "weights" / "notes.txt").write_text("mine")
    model = of_seed(made.Own, 2)
    planned(model).export(folder)
    if not (folder / "weights" / "notes.txt").exists():
        raise Lost("notes.txt")
    return same(starts(place, folder), model, "the second export")


def fine_tuned(place: Place) -> str:
    """A transformers model's own values, not those of its constructor; which a seed gives."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=1, vocab_size=32)
    model = of_seed(lambda: LlamaForCausalLM(config), 5)
    with torch.no_grad():
        model.get_parameter("lm_head.weight").add_(1.0)
    ids = torch.zeros(4, 8, dtype=torch.int64)
    folder = planned(model, batch={"input_ids": ids, "labels": ids}, loss_fn=None).export(place.folder / "out")
    same(starts(place, folder, seed=8), of_seed(lambda: LlamaForCausalLM(config), 8), "its constructor under a seed")
    return same(starts(place, folder), model, "its own values")


def moved_on(place: Place) -> str:
    """Values that are gone when the plan is exported."""
    model = made.Own()
    plan = planned(model)
    model.to("meta")
    said = refused(lambda: plan.export(place.folder / "out"), "it has lost its values")
    if (place.folder / "out").exists():
        raise Silent("half a folder was written")
    return said


def asked_again(place: Place) -> str:
    """A plan of a folder asked for something else, and exported elsewhere, starts from the same values."""
    model = of_seed(made.Own, 4)
    first = planned(model).export(place.folder / "first")
    folder = autoplan.load(first).what_if(effort="fast").export(place.folder / "second")
    return same(starts(place, folder), model, "the values of the first folder")


def generators(place: Place) -> str:
    """Planning draws, seeds and sets nothing that its caller would see."""
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes(), torch.get_default_dtype()
    given(partial(made.changed, made.seeded))
    given(partial(made.changed, made.by_generator))
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes(), torch.get_default_dtype()
    return equal(torch.equal(before[0], after[0]) and before[1:] == after[1:], "generators and default dtype")


def not_compared(place: Place) -> str:
    """A model that isn't made for the comparison: the report says so."""
    large = partial(nn.Linear, 2**15, 2**15)
    found = given(large)
    told = found.start.why
    if found.start.compared or not all(p.is_meta for p in found.module.parameters()) or "not compared" not in told:
        raise Silent(f"compared={found.start.compared}, {told!r}")
    return told


def large_and_numpy(place: Place) -> str:
    """NumPy's numbers in a model that is too large to be compared: nothing is known of it."""
    most, recipe_check.MOST_ELEMENTS = recipe_check.MOST_ELEMENTS, 8
    try:
        found = given(partial(made.changed, made.by_numpy))
    finally:
        recipe_check.MOST_ELEMENTS = most
    if found.start.repeats or "up.weight" not in found.start.unknown:
        raise Silent(f"it says {found.start}")
    return found.start.why


def dropped_buffer(place: Place) -> str:
    """Weights without a random buffer that the model's own have."""
    folder = planned(partial(made.Own, True)).export(place.folder / "out")
    state = {name: value for name, value in made.Own().state_dict().items() if name != "frequencies"}
    torch.save(state, place.folder / "state.pt")
    given = str(folder), str(place.folder / "state.pt")
    return refused(lambda: place.pools.of(RANKS).run(loaded, *given), "it lacks the buffer frequencies")


def loaded(rank: int, world: int, folder: str, file: str) -> None:
    with autoplan.load(folder).program() as program:
        program.load_weights(torch.load(file, weights_only=True))


def by_command(place: Place) -> str:
    """``file.py:make_model`` is recorded, not only called."""
    file = place.folder / "user.py"
    file.write_text(FILE + "make_model = Own\n")
    arguments = ["plan", "--model", f"{file}:make_model", "--cluster-spec", f"1x{RANKS} cpu", "--parallelism", "dp=2"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main([*arguments, "--export", str(place.folder / "out")])
    if code != 0:
        raise Silent("the command failed")
    return same(starts(place, place.folder / "out", seed=2), of_seed(made.Own, 2), "make_model() under seed 2")


def broken_by_command(place: Place) -> str:
    file = place.folder / "user.py"
    file.write_text(FILE + "def make_model():\n    raise ValueError('no such width')\n")
    arguments = ["plan", "--model", f"{file}:make_model", "--cluster-spec", f"1x{RANKS} cpu"]
    return refused_command(arguments, "ValueError: no such width", "user.py, line 4")


def attack(name: str, guards: str, run: Callable[[Place], str], slow: bool = False) -> Attack:
    return Attack("initialisation", name, guards, run, slow)


def changed(change: Callable[[made.Own], None]) -> Callable[[], nn.Module]:
    return partial(made.changed, change)


WRONG = "other values than one device has"
ATTACKS: tuple[Attack, ...] = (
    attack("a model that sets its own values, as a class", WRONG, partial(from_function, made.Own)),
    attack("the same with its values", "a parameter that no reset fills", partial(from_module, made.Own)),
    attack("a random buffer", "a buffer that is drawn anew", partial(from_function, partial(made.Own, True))),
    attack("a large buffer that state dicts leave out", "it is lost", partial(from_module, made.masked)),
    attack("a bfloat16 model", "drawn in float32", partial(from_function, made.halved)),
    attack("slices, .data, randperm, sparse_", "a write unseen", partial(from_function, changed(made.in_place))),
    attack("torch.manual_seed in the function", "it is passed over", partial(from_function, changed(made.seeded))),
    attack("fork_rng in the function", "later draws differ", partial(from_function, changed(made.forked))),
    attack("NumPy's generator", "other values on every call", partial(not_the_same_again, changed(made.by_numpy))),
    attack("Python's generator", "other values on every call", partial(not_the_same_again, changed(made.by_python))),
    attack("a function that counts its calls", WRONG, lambda place: not_the_same_again(made.Calls(), place)),
    attack("a generator of its own", WRONG, partial(kept_or_refused, changed(made.by_generator))),
    attack("a write through NumPy", "it isn't seen", partial(kept_or_refused, changed(made.through_numpy))),
    attack("values that depend on what was drawn", WRONG, partial(kept_or_refused, changed(made.by_what_was_drawn))),
    attack("the same, its errors caught", "another way is recorded", partial(kept_or_refused, changed(made.caught))),
    attack("a seed for a model with values", "reset_parameters in their place", seed_of_values),
    attack("a seed for a module on the meta device", "reset_parameters, unasked", nothing_known),
    attack("a module on the meta device", "nobody says so", partial(told_first, made.on_meta, "up.weight")),
    attack("a module half on the meta device", "half drawn anew", partial(told_first, made.half_meta, "up.weight")),
    attack("a function that builds on the meta device", WRONG, partial(told_first, made.on_meta, "meta", call=False)),
    attack("a parameter that is never filled", "garbage", partial(told_first, made.uninitialised, "scale", call=False)),
    attack("reset_parameters of a recorded function", WRONG, resets_of_a_function),
    attack("reset_parameters that don't fill everything", "a parameter left as it was", resets_by_name),
    attack("each rank another seed", "replicas that differ", other_seeds),
    attack("a flipped bit in the stored values", "it is trained on", flipped),
    attack("the stored values removed", "others in their place", removed),
    attack("another plan's stored values", "they are trained on", another_s),
    attack("trained weights where an export writes", "they are overwritten", written_over),
    attack("a second export", "the first one's values", exported_again),
    attack("a fine-tuned transformers model", "its constructor's values", fine_tuned),
    attack("a model moved to the meta device before its export", "a plan without values", moved_on),
    attack("what_if of a folder, exported elsewhere", "its values left behind", asked_again),
    attack("generators after planning", "they were drawn from", generators),
    attack("a model too large to be compared", "nobody says so", not_compared),
    attack("the same, drawn by NumPy", "one call's values for every seed", large_and_numpy),
    attack("weights without a random buffer", "drawn under some seed", dropped_buffer),
    attack("a file's function on the command line", WRONG, by_command),
    attack("a file's function that raises", "a traceback", broken_by_command),
)
