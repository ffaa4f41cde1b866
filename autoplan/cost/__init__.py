"""Prices: seconds and bytes of what a plan's program runs.

Of `autoplan`, this package and `cluster` alone read prices and figures of `cost_models`; the order of a pipeline's
actions is read elsewhere, too. A price is for local shapes: one rank's part of one microbatch. Collectives hide behind
computing only where the emitted program overlaps them.

Modules, each importing only those before it:

    mesh_links          seconds of a collective on the links that mesh axes span
    operators           operators on one device
    single_steps        the one collective between two layouts
    prices              the price list of one mesh
    chunk_seconds       redistributions in chunks beside products
    beside_tokens       a shared expert beside a mixture's tokens
    server_links        parameter servers' pushes and pulls
    zero_shares         what ZeRO leaves a rank of parameters, gradients and optimizer state
    zero_costs          seconds of ZeRO's collectives
    compressed_sums     what compressed gradients have in common
    low_rank            PowerSGD
    sent_compressed     int8, fp8, top-k, 1-bit Adam; over the slow level alone
    gathered_optimizer  updates of whole matrices
    interleaved         schedules with several stages a rank
    step                what happens once a step; the whole schedule
"""

from autoplan.cost.operators.cost import Cost
from autoplan.cost.operators.fusion import GATHERING
from autoplan.cost.operators.operator_seconds import Operator, operators_of, weights_of
from autoplan.cost.prices import Prices
from autoplan.cost.step import Timeline, timeline
from autoplan.cost.zero_costs import DataAxis
from cost_models.hardware import Device, Topology
from cost_models.optimizers import update_bytes

__all__ = [
    "GATHERING", "Cost", "DataAxis", "Device", "Operator", "Prices", "Timeline", "Topology", "operators_of", "timeline",
    "update_bytes", "weights_of",
]  # fmt: skip
