"""A parallelism in one line: what a user types, and what reports print.

    dp=2 tp=2
    dp=4,tp=2,recompute=full
    dp=4 tp=4 (2x2) pp=2, 1F1B, 16 microbatches of 1, ZeRO-1, recompute 12 of 40 blocks

What a report prints of a plan is taken back. Two of its figures follow from others and are left to the search: the
number of microbatches, which the batch gives, and how many blocks are recomputed where it isn't all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from autoplan.arguments.keywords import nearest
from autoplan.arguments.synonyms import PARALLELISM_NAMES
from autoplan.arguments.values import parse_settings
from autoplan.errors import ParallelismError
from autoplan.option_values import AUTO, OFFLOADS, ON_DISK, RECOMPUTE, SCHEDULES, SHARED, TABLES, UNBOUNDED
from autoplan.options import Parallelism

SCHEDULE_WORDS: Mapping[str, str] = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B", "zero-bubble": "zero bubble",
    "pipedream": "PipeDream", "pipedream-vertical-sync": "PipeDream with vertical sync",
    "pipedream-2bw": "PipeDream-2BW",
}  # fmt: skip
SYSTEM_WORDS: Mapping[str, str] = {
    "ulysses": "sequence split, attention by heads (Ulysses)",
    "context-parallel": "sequence split, keys and values gathered",
    "ring-attention": "sequence split, keys and values round a ring",
    "vocab-parallel": "vocabulary split, rows elsewhere",
    "expert-parallel": "experts split, rows elsewhere",
    "expert-all-to-all": "experts split, tokens by all-to-all, rows elsewhere",
    "table-parallel": "tables placed, rows elsewhere",
    "expert-partial-sum": "experts split, tokens gathered, rows elsewhere",
}
"""Named systems of one tensor axis in plain words."""
CP_WORDS: Mapping[str, str] = {
    "heads": "context by heads (Ulysses)", "rows": "context by rows, keys and values gathered",
    "ring": "context by rows, keys and values round a ring",
}  # fmt: skip
"""How attention is split over the context's axis."""
COMPRESSION_WORDS: Mapping[str, str] = {
    "powersgd": "PowerSGD", "int8": "int8 gradients", "fp8": "fp8 gradients", "topk": "top-k", "1bit": "1-bit Adam",
    "1bit-lamb": "1-bit LAMB",
}  # fmt: skip
"""How gradients over the data axis are compressed."""
FIELDS: Mapping[str, object] = {
    "dp": 1, "tp": 1, "pp": 1, "zero": 0, "micro_batch": 1, "pipeline_schedule": "", "virtual_stages": 1,
    "recompute": "", "sequence_parallel": False, "offload": "", "tensor": "", "tensor_system": "", "local_steps": 1,
    "cp": 1, "ep": 1, "cp_attention": "", "dp_replicate": 1, "etp": 1, "outer_optimizer": "",
    "compression": "", "compression_rank": 1, "gossip": "", "servers": 1, "staleness": 1,
    "compression_rate": 1.0, "tp_overlap": 1, "ep_overlap": 1, "compression_within": 1, "backups": 1,
    "ahead": None, "all_reduce": "", "tables": "", "table_cache": 1.0, "table_misses": 1.0,
}  # fmt: skip
"""The fields of Parallelism, all None by default, with what they hold."""
EXAMPLE = "write for example dp=2,tp=2 or a system's name"

OR_A_WORD = ("ahead", "tp_overlap", "ep_overlap")
"""Fields that are a number or one of some words; those words are among ``PHRASES``."""
Settings = Mapping[str, object]
Phrase = tuple[re.Pattern[str], Callable[[re.Match[str]], Settings]]
_SEPARATOR = re.compile(r"[\s,;]+")
_SETTING = re.compile(r"(\w[\w-]*)\s*=\s*([^\s,;]*)", re.ASCII)


def read_text(text: str, systems: Collection[str], what: str = "parallelism") -> str | Parallelism:
    """A system's name as it is known, or the fields that a text pins.

    what  names in the error what the text is given as
    Raises ParallelismError, or InputsError for a KEY=VALUE, where a part of the text says nothing, or two disagree.
    """
    name = re.sub(r"^zero-(?=\d)", "zero", re.sub(r"[\s_]+", "-", text.strip().lower()))
    if name in systems:
        return name
    pinned: dict[str, object] = {}
    for settings in _parts(text, systems, what):
        for field, value in settings.items():
            if pinned.setdefault(field, value) != value:
                said = f"{field} is both {pinned[field]} and {value}"
                raise ParallelismError(f"{what} {text!r}", said, "give each field once")
    return Parallelism(**pinned)  # type: ignore[arg-type]


def _parts(text: str, systems: Collection[str], what: str) -> Iterator[Settings]:
    """What each part of a text says, from its beginning to its end."""
    place, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if place >= end:
        raise ParallelismError(f"{what}={text!r}", "it says nothing", f"use 'auto', or {EXAMPLE}")
    while place < end:
        match, says = _phrase(text, place)
        if match is None or not (match.end() >= end or _SEPARATOR.match(text, match.end())):
            raise _unknown(text, text[place:end], systems, what)
        yield _setting(match, what) if says is None else says(match)
        gap = _SEPARATOR.match(text, match.end())
        place = gap.end() if gap else match.end()


def _phrase(text: str, place: int) -> tuple[re.Match[str] | None, Callable[[re.Match[str]], Settings] | None]:
    for pattern, says in PHRASES:
        match = pattern.match(text, place)
        if match is not None and (match.end() >= len(text) or _SEPARATOR.match(text, match.end())):
            return match, says
    return _SETTING.match(text, place), None


def _setting(match: re.Match[str], what: str) -> Settings:
    """KEY=VALUE, whose key may be written in capitals or with hyphens."""
    key = match[1].lower().replace("-", "_")
    value = match[2].lower() if isinstance(FIELDS.get(key), str) else match[2]
    if key in OR_A_WORD and not re.fullmatch(r"[+-]?\d+", value, re.ASCII):
        return {key: value}  # Parallelism's own check names the words that there are
    settings = parse_settings([f"{key}={value}"], FIELDS, what, PARALLELISM_NAMES)
    if "tensor" in settings:
        settings["tensor"] = factors(value)
    return settings


def _unknown(text: str, rest: str, systems: Collection[str], what: str) -> ParallelismError:
    """The error for what stands where nothing was understood."""
    piece = _SEPARATOR.split(rest)[0]
    if counted := re.match(r"\d+ microbatch(es)?", rest):
        cause = "the batch gives their number"
        raise ParallelismError(f"{what} {text!r}: {counted[0]}", cause, "pin micro_batch=N: rows of one on a rank")
    known = [*systems, *FIELDS]
    near = nearest(piece, known)
    other = PARALLELISM_NAMES.get(re.split(r"[\W\d]", piece.lower())[0])
    remedy = f"write {other}, or " if other else f"did you mean {' or '.join(near)}? Or " if near else ""
    if piece == text.strip():
        remedy += f"use one of {', '.join(systems)}, or {EXAMPLE}"
        return ParallelismError(f"{what}={text!r}", "no such system", remedy)
    return ParallelismError(f"{what} {text!r}", f"{piece!r} says nothing of a parallelism", f"{remedy}{EXAMPLE}")


def sum_rule(text: str) -> str:
    """An all-reduce for each size as options have it: sizes in KiB and MiB, whatever their case was."""
    return text.lower().replace("kib", "KiB").replace("mib", "MiB")


def factors(text: str) -> tuple[int, ...]:
    """The factors of "2x4"; ParallelismError where it is none."""
    if not re.fullmatch(r"\d+(x\d+)*", text, re.ASCII):
        raise ParallelismError(f"tensor={text}", "it is no product of sizes", "write for example tensor=2x4")
    return tuple(int(size) for size in text.split("x"))


def _recomputed(match: re.Match[str]) -> Settings:
    """Of all blocks, the way that is pinned; of some, how many is left to the search."""
    if match[1] != match[2]:
        return {}
    return {"recompute": "full"} if match[3] is None else {"recompute": "selective"} if match[3] == "all" else {}


def _phrases() -> Iterator[Phrase]:
    """What reports print beside KEY=VALUE, and shorthands, the longer before what they begin with."""

    def phrase(pattern: str, says: Callable[[re.Match[str]], Settings]) -> Phrase:
        return re.compile(pattern, re.IGNORECASE | re.ASCII), says

    def word(field: str, pattern: str, value: object) -> Phrase:
        return phrase(pattern, lambda match: {field: value})

    yield from (word("tensor_system", re.escape(words), name) for name, words in SYSTEM_WORDS.items())
    for name in sorted(SCHEDULES, key=len, reverse=True):  # one may begin as another
        yield word("pipeline_schedule", f"{re.escape(SCHEDULE_WORDS[name])}|{re.escape(name)}", name)
    yield phrase("one device", lambda match: {"dp": 1, "tp": 1, "pp": 1})
    yield phrase(r"tp=(\d+) \((\d+(?:x\d+)+)\)", lambda m: {"tp": int(m[1]), "tensor": factors(m[2])})
    yield phrase(r"(dp|tp|pp|cp|etp|ep)(\d+)", lambda m: {m[1].lower(): int(m[2])})
    yield from (word("cp_attention", re.escape(words), name) for name, words in CP_WORDS.items())
    yield phrase(r"(\d+) stages on each rank", lambda m: {"virtual_stages": int(m[1])})
    yield phrase(r"(?:\d+ )?microbatch(?:es)? of (\d+)", lambda m: {"micro_batch": int(m[1])})
    yield phrase(r"ZeRO-?(\d)", lambda m: {"zero": int(m[1])})
    yield word("zero", "fsdp", 3)
    yield phrase(r"(\d+) replicas(?! averaged)", lambda m: {"dp_replicate": int(m[1])})
    yield word("sequence_parallel", "sequence[ -]parallel", True)
    yield phrase(r"tensor collectives in (\d+) chunks", lambda m: {"tp_overlap": int(m[1])})
    yield word("tp_overlap", rf"tensor collectives in chunks|tp[_-]overlap\s*=\s*{AUTO}", AUTO)
    yield phrase(r"tokens travel in (\d+) chunks", lambda m: {"ep_overlap": int(m[1])})
    yield word("ep_overlap", rf"tokens travel under compute|ep[_-]overlap\s*=\s*{AUTO}", AUTO)
    yield word("ep_overlap", rf"tokens travel under shared experts|ep[_-]overlap\s*=\s*{SHARED}", SHARED)
    yield phrase(rf"offload ({'|'.join((*OFFLOADS, ON_DISK))})", lambda m: {"offload": m[1].lower()})
    yield phrase(r"activations of \d+ of \d+ blocks on the host", lambda m: {"offload": "activations"})
    yield phrase(r"(2d|2\.5d|3d) tensor parallel", lambda m: {"tensor_system": m[1].lower()})
    yield phrase(r"replicas averaged every (\d+) steps", lambda m: {"local_steps": int(m[1])})
    outer = r"outer steps \((\w+)\) every (\d+) steps"
    yield phrase(outer, lambda m: {"local_steps": int(m[2]), "outer_optimizer": m[1].lower()})
    graph = r"neighbours on an? (\w+) graph averaged every (?:(\d+) steps|step)"
    yield phrase(graph, lambda m: {"gossip": m[1].lower(), **({"local_steps": int(m[2])} if m[2] else {})})
    yield phrase(r"(\d+) parameter servers?", lambda m: {"servers": int(m[1])})
    yield phrase(r"weights (\d+) updates? old", lambda m: {"staleness": int(m[1])})
    yield phrase(r"(\d+) backup workers?", lambda m: {"backups": int(m[1])})
    arrive = "gradients applied as they arrive"
    yield phrase(rf"{arrive}, workers (\d+) steps? ahead at most", lambda m: {"ahead": int(m[1])})
    yield word("ahead", rf"{arrive}|ahead\s*=\s*{UNBOUNDED}", UNBOUNDED)
    powersgd = {"compression": "powersgd"}
    yield phrase(r"PowerSGD of rank (\d+)", lambda m: {**powersgd, "compression_rank": int(m[1])})
    topk = {"compression": "topk"}
    yield phrase(r"top-k of ([\d.]+(?:e-\d+)?)", lambda m: {**topk, "compression_rate": float(m[1])})
    yield from (word("compression", words, kind) for kind, words in COMPRESSION_WORDS.items())
    yield phrase(r"between groups of (\d+)", lambda m: {"compression_within": int(m[1])})
    yield phrase(r"([\w<]+) all-reduce|all[_-]reduce\s*=\s*([\w<]+)", lambda m: {"all_reduce": sum_rule(m[1] or m[2])})
    yield phrase(rf"tables on ({'|'.join(TABLES)})", lambda m: {"tables": m[1].lower()})
    share = r"([\d.]+(?:e-\d+)?)"
    yield phrase(rf"{share} of rows cached", lambda m: {"table_cache": float(m[1])})
    yield phrase(rf"{share} of rows missed", lambda m: {"table_misses": float(m[1])})
    yield phrase(rf"recompute ({'|'.join(RECOMPUTE)})", lambda m: {"recompute": m[1].lower()})
    yield phrase(r"recompute (\d+) of (\d+) blocks(?: \((all|\d+) selectively\))?", _recomputed)


PHRASES: tuple[Phrase, ...] = tuple(_phrases())
