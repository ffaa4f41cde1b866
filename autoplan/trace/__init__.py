"""nn.Module -> autoplan.graph.Model: the only reader of torch.export and torch.fx.

The modules of this package are its passes, in this order: repeats (what repeats), copying (a weightless copy with two
repeats of it), huggingface (attention that shards), wrapping (batch and loss), capture (torch.export), convert (the
canonical form, by the table in forms/), views (chains of reshapes and permutes in their shorter form), clean (constants
once, fused projections apart), and then autoplan.blocks.
"""

from autoplan.trace.pipeline import trace
from autoplan.trace.table import form

__all__ = ["form", "trace"]
