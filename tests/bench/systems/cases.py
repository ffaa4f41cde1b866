"""What is in the matrix: every named system, the models that it is shown on, and how many ranks it takes."""

from __future__ import annotations

from autoplan.cluster import ClusterSpec
from autoplan.errors import ParallelismError
from autoplan.options import Parallelism, Training
from autoplan.search.space.systems import SYSTEMS, resolve
from tests.support import zoo

MODELS = ("llama", "gpt2", "bert")
MIXTURE, RECOMMENDER = "mixtral", "dlrm"
SPLIT_EXPERTS = ("expert-parallel", "expert-all-to-all", "expert-partial-sum")  # what only a mixture has
RANKS = (4, 8)
LAYERS = 6  # with what stands before and behind them eight segments: two stages on each of four ranks
MIXED = Training(optimizer="adamw", precision="bf16-mixed", learning_rate=1e-3)

Cell = tuple[str, str]
"""(system, model)"""


def made(model: str, seed: int = 0) -> zoo.Made:
    """The model with its batch, deep enough for every system."""
    return zoo.small(model, seed=seed, layers=LAYERS)


def models_of(system: str) -> tuple[str, ...]:
    if system == "table-parallel":
        return (RECOMMENDER,)
    return (MIXTURE,) if system in SPLIT_EXPERTS else MODELS


def cells() -> tuple[Cell, ...]:
    """The whole matrix, in the order of the table of named systems; a mixture of experts under a few of them, too."""
    return tuple((system, model) for system in SYSTEMS for model in models_of(system))


def ranks_of(system: str) -> int:
    """The fewest ranks that a system is defined on: four, or eight for those that need three axes of at least two."""
    return ClusterSpec.of(cluster_of(system)).devices


def cluster_of(system: str) -> str:
    """One node of as many ranks; two where a system has something to do between nodes."""
    for cluster in (f"{nodes}x{ranks // nodes} cpu" for ranks in RANKS for nodes in (1, 2)):
        try:
            resolve(system, ClusterSpec.of(cluster))
        except ParallelismError:
            continue
        return cluster
    return f"1x{RANKS[0]} cpu"


def asynchronous(parallelism: Parallelism) -> bool:
    """Whether the plan's updates are stale on purpose, so that it doesn't compute what one device does."""
    return parallelism.asynchronous
