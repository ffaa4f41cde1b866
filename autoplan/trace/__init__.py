"""nn.Module -> autoplan.ir.graph.Model: the only reader of torch.export and torch.fx.

The modules of this package are its passes, in this order: hooks and handed (what no program could hold is refused),
repeats (what repeats), copying (a weightless copy with two repeats of it), modes (training or eval, by submodule),
huggingface (attention that shards), wrapping (batch and loss; outputs finds the loss), observed, watching and functions
(what forward does that no graph holds), capture (torch.export), settled (whether a second step would be the first
again), convert (the canonical form, by the table in forms/), views (chains of reshapes and permutes in their shorter
form), clean (constants once, fused projections apart), trained (autograd's account against the graph's), and then
autoplan.blocks.
"""

from autoplan.trace.checks.input_dtypes import check_dtypes
from autoplan.trace.pipeline import trace
from autoplan.trace.table import form

__all__ = ["check_dtypes", "form", "trace"]
