"""The published tables that hold times of steps and layers: which file each is, and what its reader assumes.

Modules, each importing only those before it:

    megatron       Megatron-LM until 2022, and Megatron-DeepSpeed
    megatron_core  Megatron-LM's continuous integration since 2024
    sc21           Narayanan et al., SC21
    fsdp           decoders under data parallelism alone: MPT, FlashAttention's GPT
    torchtitan     Llama 3 on H100s
    alpa           Alpa's GPT on V100s
"""

from tests.bench.closed_form.tables.alpa import ALPA
from tests.bench.closed_form.tables.fsdp import FLASH_ATTENTION, MPT
from tests.bench.closed_form.tables.megatron import KORTHIKANTI, KORTHIKANTI_STEPS, MEGATRON_2020, VTRAIN
from tests.bench.closed_form.tables.megatron_core import MEGATRON_CORE, MIXTURES
from tests.bench.closed_form.tables.sc21 import SC21_PTDP, SC21_WEAK_SCALING, SC21_ZERO
from tests.bench.closed_form.tables.torchtitan import TORCHTITAN, TORCHTITAN_FURTHER

TABLES = (
    VTRAIN, SC21_WEAK_SCALING, SC21_PTDP, SC21_ZERO, KORTHIKANTI, KORTHIKANTI_STEPS, MEGATRON_2020, MEGATRON_CORE,
    MIXTURES, MPT, TORCHTITAN, TORCHTITAN_FURTHER, FLASH_ATTENTION, ALPA,
)  # fmt: skip

NOT_USED = (
    ("vtrain_ground_truth_single.csv", "looks composed, not measured: "
     "c0 + c1·layers + m·(c2 + c3·layers) holds to 0.000% in the rows of one axis"),
    ("mfu_anchors.csv", "shares of the peak without the recipes that they were measured with"),
)  # fmt: skip
"""Files that hold times and aren't used, and why."""

__all__ = ["NOT_USED", "TABLES"]
