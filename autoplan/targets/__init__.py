"""A plan in the words of other trainers, and the scripts that start it on a cluster.

A trainer knows fewer ways than a plan has. What it can't express is told, never dropped without a word, and
``Plan.export_config`` plans again what is left, so that it has a price.

Order: `config` (what a trainer is told), `plan_figures` (a plan's figures as trainers ask for them), `config_text`
(YAML and flags), `megatron`, `torchtitan`, `deepspeed`, `accelerate`, `nanotron` (one trainer each), `trainers`
(trainers by name), `launchers` (torchrun, Slurm, Kubernetes).
"""

from autoplan.targets.config import ExportedConfig
from autoplan.targets.launchers import launchers
from autoplan.targets.trainers import KINDS, config_of

__all__ = ["KINDS", "ExportedConfig", "config_of", "launchers"]
