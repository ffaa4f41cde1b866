"""Why the plan is as it is: what bounds it, what was ruled out, what the trace had to say."""

from autoplan.arguments.environment import NVME
from autoplan.emit.source import size_text
from autoplan.ir.buckets import Compression, shard_sizes
from autoplan.ir.choice import Alternative
from autoplan.ir.randomness import ATTENTION, drops_by_rank
from autoplan.ir.record import PlanRecord
from autoplan.option_values import ON_DISK, UNBOUNDED
from autoplan.options import Parallelism, Training
from autoplan.report.device_kinds import memory_limits_of, unequal
from autoplan.report.experts import experts_notes
from autoplan.report.idle_options import idle_options
from autoplan.report.kept_out import kept_out
from autoplan.report.table import paragraph
from autoplan.report.waits import spent_s
from autoplan.report.words import fullest_stage, is_chosen, is_equal, parallelism_text, seconds_text
from autoplan.search.explain.pins import PRICES_OF_PINS, UNPINNED_QUICKLY
from autoplan.search.predict import COMPRESSED
from autoplan.search.space.batch_axes import split_batch
from autoplan.search.space.systems import CLASSICAL
from cost_models.pipeline.schedule import staleness as update_ages
from cost_models.pipeline.schedule import weight_versions


def notes_section(record: PlanRecord) -> str:
    notes = notes_of(record)
    return "\n".join(["Why", *(paragraph(note) for note in notes)]) if notes else ""


def notes_of(record: PlanRecord) -> list[str]:
    notes = [*idle_options(record), *staleness(record), *on_disks(record), *own_draws(record), *bounds(record)]
    return [*notes, *classical(record), *batch_reasons(record), *experts_notes(record), *record.model.notes]


def on_disks(record: PlanRecord) -> list[str]:
    """Where an optimizer's state is that lies on disks."""
    if record.chosen.parallelism.offload != ON_DISK:
        return []
    return [
        f"Disk: masters and the optimizer's state lie in files without a name, in the folder that {NVME} names, else "
        "in that for temporary files; it is to be on a disk of each node. They end with the process: checkpoints hold "
        "what training goes on from."
    ]


def staleness(record: PlanRecord) -> list[str]:
    """What differs from the step of one device, where the plan's steps aren't synchronous."""
    p, t = record.chosen.parallelism, record.training
    if p.outer_optimizer and isinstance(t, Training):
        return [
            f"Asynchronous: each of {record.chosen.mesh.size('dp')} replicas takes {p.local_steps} steps by itself, on "
            "its own rows. Then what all began with is updated by the mean of their changes, with Nesterov's momentum "
            f"{t.outer_momentum:g} and the rate {t.outer_learning_rate:g} (DiLoCo); the inner optimizer's moments stay "
            "each replica's. It isn't the step of one device on the whole batch."
        ]
    if p.gossip:
        often = f"every {p.local_steps} steps" if p.local_steps else "after every step"
        return [
            f"Asynchronous: each of {record.chosen.mesh.size('dp')} replicas steps by itself, on its own rows and with "
            f"the mean over its own valid tokens. Its parameters are averaged with its neighbours' on the {p.gossip} "
            f"graph {often} (D-PSGD); the optimizer's moments stay its own. Replicas differ from one another; what is "
            "evaluated and saved is their mean. It isn't the step of one device on the whole batch."
        ]
    if p.steps_locally:
        return [
            f"Asynchronous: each of {record.chosen.mesh.size('dp')} replicas takes {p.local_steps} steps by itself, on "
            "its own rows and with the mean over its own valid tokens, before all are averaged (local SGD); it isn't "
            "the step of one device on the whole batch."
        ]
    if p.servers:
        return [server_note(record, p)]
    if p.continuous:
        return [continuous_note(record)]
    if p.compressed and isinstance(t, Training):
        return [compression_text(record, p.compressed, p.compressed.warm_up(t.compression_start))]
    return []


COMPRESSED_AS = {
    "powersgd": (
        "a matrix so large that factors of rank {rank} (PowerSGD) have less than half its elements",
        "as factors of rank {rank} (PowerSGD)",
    ),
    "int8": ("a matrix that dp alone sums", "in blocks of 256 int8 with a scale (int8)"),
    "fp8": ("a matrix that dp alone sums", "in blocks of 256 float8 (e4m3) with a scale (fp8)"),
    "1bit": (
        "a matrix that dp alone sums",
        "as Adam's momentum in one bit an element, with a frozen variance (1-bit Adam)",
    ),
    "1bit-lamb": (
        "a matrix that dp alone sums",
        "as LAMB's momentum in one bit an element, with a frozen variance and ratios that follow it (1-bit LAMB)",
    ),
    "topk": ("a matrix that dp alone sums", "as the {rate:.2%} of elements that are largest on each rank (top-k)"),
}
"""By kind: what it takes, and how that goes."""


def compression_text(record: PlanRecord, how: Compression, start: int) -> str:
    """What goes compressed over dp, and that it isn't one device's step; or that nothing does."""
    sent, taken, kind = sent_text(record), *COMPRESSED_AS[how.kind]
    kind = kind.format(rank=how.rank, rate=how.rate)
    if not sent:
        taken = taken.format(rank=how.rank)
        return (
            f"Nothing is compressed: no gradient is {taken}, and that one stage alone has. All are summed whole over "
            "dp."
        )
    first = f" after {start} steps with whole gradients" * bool(start)
    if how.within > 1:
        kind += f", between groups of {how.within} ranks, each of which sums them whole first"
    left = ", and what it leaves out is added to the next one's" if how.feeds_back else ", and what it lacks is dropped"
    return (
        f"Compressed: gradients go over dp {kind}{first}{sent}. A step's gradient is an approximation{left}. It isn't "
        "the step of one device; vectors, small matrices and weights that several stages sum are whole."
    )


def continuous_note(record: PlanRecord) -> str:
    """Of a pipeline without a flush: how old the weights are that gradients are of, and how many versions are held."""
    p, m = record.chosen.parallelism, record.chosen.microbatches
    schedule, ranks = p.pipeline_schedule or "", record.chosen.mesh.size("pp")
    late, versions = update_ages(schedule, ranks, m), weight_versions(schedule, ranks, m)
    ages = f"{late[0]} on every stage" if len(set(late)) == 1 else f"{', '.join(map(str, late))} on the stages in order"
    kept = str(versions[0]) if len(set(versions)) == 1 else ", ".join(map(str, versions))
    tied = "" if schedule != "pipedream" else " (stages with weights in common are as late as the first of them)"
    return (
        f"Asynchronous: the pipeline isn't flushed between steps, and gradients are of older weights, by so many "
        f"updates: {ages}{tied}. A stage holds {kept} versions of its weights. It isn't the step of one device. A step "
        "returns the loss of the oldest batch in flight; evaluating, saving and reading weights drain the pipeline."
    )


def server_note(record: PlanRecord, p: Parallelism) -> str:
    """What parameter servers have, and which weights gradients are of."""
    servers, staleness, backups = p.servers or 0, p.staleness or 0, p.backups or 0
    sizes = {p.name: float(p.type.bytes) for p in record.model.parameters if p.trainable}
    fullest, whole = max(shard_sizes(sizes, servers)), sum(sizes.values())
    ranks = record.chosen.mesh.size("dp")
    has = f"{servers} parameter server{'s have' if servers > 1 else ' has'} the weights, on {ranks} workers"
    shard = f"; the fullest {size_text(fullest)} of {size_text(whole)}" if servers > 1 else f", {size_text(whole)}"
    if backups:
        return (
            f"Asynchronous: {has}{shard}. A step is by the mean of the gradients of the first {ranks - backups} "
            f"workers that have theirs, each the mean over its own rows; those of the other {backups} are dropped, and "
            "so are their rows of the batch. Which they are differs from run to run. It isn't the step of one device. "
            "The predicted time knows no worker that is late, which is what backups are for."
        )
    if p.ahead:
        return f"Asynchronous: {has}{shard}. {arriving_note(p.ahead, ranks)}{compensation_note(record)}"
    if not staleness:
        return f"Servers: {has}{shard}. Every step waits for all gradients and for the new weights: it is one device's."
    old = f"{staleness} update{'s' * (staleness > 1)}"
    return (
        f"Asynchronous: {has}{shard}. Gradients are of the weights {old} before the newest, on every worker and in "
        "every run the same; new weights are pulled beside the next step. It isn't the step of one device."
    )


def compensation_note(record: PlanRecord) -> str:
    """Of what servers do about the delay of gradients."""
    factor = record.training.delay_compensation if isinstance(record.training, Training) else None
    if factor is None:
        return ""
    return (
        f" A gradient g of weights v is applied to weights w as g + {factor:g}·g²·(w - v), for its delay (DC-ASGD); a "
        "server keeps what each worker has read."
    )


def arriving_note(ahead: int | str, workers: int) -> str:
    """Of servers that apply gradients as they arrive."""
    said = (
        "A server makes an update by each worker's gradients, the mean over its own rows, as they arrive: "
        f"{workers} updates in a step of all. "
    )
    if ahead == UNBOUNDED:
        said += "No worker waits for another, so that nothing bounds how old the weights are that gradients are of. "
    else:
        oldest = (workers - 1) * (2 * int(ahead) + 1)
        said += (
            f"A worker waits where it is more than {ahead} step{'s' * (ahead != 1)} ahead of the slowest, so that "
            f"gradients are of weights at most {oldest} updates old. "
        )
    return said + (
        "Which they are differs from run to run. A step returns the loss of this rank's own rows. It isn't the step of "
        "one device."
    )


def sent_text(record: PlanRecord) -> str:
    """``, 1.2 MiB in a step``: what the device with most of them sends of gradients; "" where none go so."""
    parts = [c for c in record.chosen.predicted.collectives if c.where == COMPRESSED]
    within = {c.axis for c in parts if c.kind == "reduce-scatter"}  # between ranks that lie together, whole
    sent = sum(c.bytes for c in parts if c.axis not in within)
    return f", {size_text(sent)} in a step of a device" if sent else ""


def own_draws(record: PlanRecord) -> list[str]:
    """What differs from the step of one device where ranks draw for themselves, and what that saves."""
    nodes = [node for block in record.model.blocks for node in block.nodes if drops_by_rank(node)]
    if not nodes:
        return []
    said = (
        "Random: randomness='per-rank' has each rank draw its own part of what drops out, alike where ranks hold the "
        "same. The draws aren't one device's, nor another plan's; all else is equal to one device, and so is the mean "
        "over draws. Torch's own kernels drop, and keep a mask of bytes where they aren't compiled."
    )
    if any(node.op == ATTENTION for node in nodes):
        said += " Attention drops within its kernel where the device's has dropout: no scores go through memory."
    return [said]


def bounds(record: PlanRecord) -> list[str]:
    """What the time goes to and how near its memory limit the fullest stage is."""
    predicted = record.chosen.predicted
    said = []
    if predicted.step_time_s:
        exposed_s = spent_s(record, hidden=False)
        idle_s = predicted.bubble_fraction * predicted.step_time_s
        bubble = f"{seconds_text(idle_s)} in the pipeline's bubble and " if predicted.bubble_fraction > 1e-6 else ""
        said.append(
            f"Time: of {seconds_text(predicted.step_time_s)} a device waits {bubble}{seconds_text(exposed_s)} for "
            "collectives that no compute hides."
        )
    memory_limits = memory_limits_of(record)
    stage = fullest_stage(record.chosen, memory_limits)
    place = "rank" if len(predicted.peak_bytes) < len(record.chosen.stages) else "stage"
    total, memory_limit = predicted.peak_bytes[stage].total, memory_limits[stage]
    said.append(
        f"Memory: {place} {stage} is the fullest, {size_text(total)} of {size_text(memory_limit)} a device; "
        f"{size_text(memory_limit - total)} are left.{margin_text(record, memory_limit - total)}"
    )
    return [*said, *copies(record), *unequal(record), *price_of_pins(record), *next_best(record)]


def copies(record: PlanRecord) -> list[str]:
    """That what an asynchronous save holds doesn't fit, where a device's memory is the host's: the peak leaves it out,
    for a run may save otherwise or not at all."""
    host = record.cluster.profile()[0].host
    if not isinstance(record.training, Training) or host is None or not host.own:
        return []
    held = [(p.parameters + p.optimizer, p.total) for p in record.chosen.predicted.peak_bytes]
    lacking = [size + total - limit for (size, total), limit in zip(held, memory_limits_of(record), strict=True)]
    if max(lacking) <= 0:
        return []
    size, _ = held[lacking.index(max(lacking))]
    return [
        f"Memory: an asynchronous save copies up to {size_text(size)} into the same memory and keeps it for the next "
        "save, which is more than what is left. Nothing is copied by save_checkpoint(asynchronous=False), nor by "
        "train.py --save-synchronously."
    ]


def margin_text(record: PlanRecord, left: int) -> str:
    """That so many bytes are less than the cluster's margin; "" where they aren't."""
    cluster = record.cluster
    if left >= cluster.usable_bytes - cluster.aimed_bytes:
        return ""
    return f" That is less than the margin, {100 * cluster.memory_margin:g}% of the limit, for what this may be off by."


def price_of_pins(record: PlanRecord) -> list[str]:
    """``tp=4 pinned costs 8.2% against dp=8``: what would be taken were nothing pinned."""
    free = next((a for a in record.alternatives if a.name in PRICES_OF_PINS), None)
    if free is None or not free.step_time_s:
        return []
    asked = record.asked
    fields = [f"{name}={value}" for name, value in asked.parallelism.pinned().items()]
    what = [f"parallelism={asked.system!r}"] if asked.system else [" ".join(fields)] if fields else []
    many = len(asked.constraints)
    what += [f"{many} constraint{'s' if many > 1 else ''}"] if many else []
    pinned = " and ".join(what) or "what is"
    costs = record.chosen.predicted.step_time_s / free.step_time_s - 1
    quickly = free.name == UNPINNED_QUICKLY
    if costs <= 1e-9 and quickly:
        return [f"Pins: a quick search finds nothing faster than {pinned} pinned."]
    if costs <= 1e-9:
        return [f"Pins: {pinned} pinned costs nothing: the search takes the same plan without."]
    least, whose = ("at least ", ", which a quick search found") if quickly else ("", "")
    text = parallelism_text(free.parallelism)
    return [f"Pins: {pinned} pinned costs {least}{100 * costs:.1f}% against {text}{whose}."]


def next_best(record: PlanRecord) -> list[str]:
    """The quickest alternative that fits, and the quickest that doesn't, where it is quicker than the plan."""
    step_s = record.chosen.predicted.step_time_s
    fitting = quickest_fitting(record)
    beyond = min((a for a in others(record) if a.over_bytes > 0), key=lambda a: a.step_time_s, default=None)
    said = []
    if fitting is not None and step_s:
        said.append(beside_it(record, fitting))
    if beyond is not None and beyond.step_time_s < step_s:
        said.append(
            f"Memory decides: {beyond.name} would take {seconds_text(beyond.step_time_s)}, "
            f"but exceeds the memory limit by {size_text(beyond.over_bytes)} a device."
        )
    return said


def beside_it(record: PlanRecord, fitting: Alternative) -> str:
    """An alternative that fits; where it is quicker, why it isn't the plan."""
    if fitting.step_time_s >= record.chosen.predicted.step_time_s:
        return f"Next: {fitting.name} also fits and {slower(record, fitting)}."
    equal = " The two are equal as far as predictions go." if is_equal(record, fitting) else ""
    reason = kept_out(record, fitting.parallelism)
    return f"Quicker: {fitting.name} also fits and {slower(record, fitting)}. It isn't taken: {reason}.{equal}"


def others(record: PlanRecord) -> list[Alternative]:
    """The alternatives that have a price, the plan itself and the price of its pins aside."""
    beside = (a for a in record.alternatives if a.name not in PRICES_OF_PINS and not a.why_not)
    return [a for a in beside if not is_chosen(record, a)]


def quickest_fitting(record: PlanRecord) -> Alternative | None:
    return min((a for a in others(record) if a.over_bytes <= 0), key=lambda a: a.step_time_s, default=None)


def classical(record: PlanRecord) -> list[str]:
    """Why each classical choice that fits is slower: what it waits for."""
    step_s = record.chosen.predicted.step_time_s
    names = [name for name, _ in CLASSICAL]
    told = quickest_fitting(record)
    fitting = [a for a in others(record) if a.name in names and a.over_bytes <= 0]
    slow = [a for a in fitting if step_s and a.step_time_s > step_s and a != told and waiting(record, a)]
    return [f"Not {a.name}: it {slower(record, a)}." for a in slow]


def slower(record: PlanRecord, alternative: Alternative) -> str:
    """``takes 1.56 times as long`` or ``takes 4.1% longer, waiting 2.1 s for gradients (all-reduce over dp)``; of a
    quicker one, ``takes 4.1% less time``."""
    ratio = alternative.step_time_s / record.chosen.predicted.step_time_s
    waits = waiting(record, alternative)
    slightly = f"{100 * (ratio - 1):.1f}% longer" if ratio >= 1 else f"{100 * (1 - ratio):.1f}% less time"
    longer = slightly if 0.9 < ratio < 1.1 else f"{ratio:.2f} times as long"
    return f"takes {longer}{', waiting ' if waits else ''}{waits}"


def waiting(record: PlanRecord, alternative: Alternative) -> str:
    """What an alternative waits for in a step; "" for nothing."""
    parts = []
    longest = alternative.waits
    if longest is not None:
        open_s = longest.seconds - longest.hidden_s
        where = reach(record, alternative.parallelism, longest.axis)
        parts.append(f"{seconds_text(open_s)} for {longest.where} ({longest.kind} over {longest.axis}, {where})")
    if alternative.idle_s > 1e-6 * alternative.step_time_s:
        parts.append(f"{seconds_text(alternative.idle_s)} in the pipeline's bubble")
    return " and ".join(parts)


def reach(record: PlanRecord, p: Parallelism, axis: str) -> str:
    """Whether the ranks of an axis are in one node or on several."""
    mesh = p.mesh()
    along, node = [mesh.axis(name) for name in axis.split(",")], record.cluster.devices_per_node
    return "within a node" if all(a.stride * a.size <= node for a in along) else "between nodes"


def batch_reasons(record: PlanRecord) -> list[str]:
    """Why the batch isn't cut into microbatches, or isn't split over ranks, where the model doesn't let it."""
    chosen, training = record.chosen, isinstance(record.training, Training)
    apart = record.training.microbatch_statistics
    said = []
    for one, virtual, what in (
        (chosen.microbatches == 1, True, "One microbatch"),
        (chosen.mesh.size("dp") == 1, False, "No data parallelism"),
    ):
        split = split_batch(record.model, virtual=virtual, loss=training, apart=apart and virtual) if one else None
        if split is not None and (reason := split.reason):
            said.append(f"{what}: {reason}.")
    return said
