"""Low-rank adapters beside frozen weights, as recipes of fine-tuning have them (Hu et al. 2021, arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

RANK, ALPHA = 16, 32
"""What the recipes have that were read: MLPerf's llama2_70b_lora and NeMo AutoModel's."""


class AdaptedLinear(nn.Module):
    """x W' + b + (alpha / rank) x A' B'; W and b are frozen, A [rank, in] and B [out, rank] are trained."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        told = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.base, self.scale = base, alpha / rank
        self.lora_a = nn.Linear(base.in_features, rank, bias=False, **told)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False, **told)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + self.scale * self.lora_b(self.lora_a(x))
        return result


def with_adapters(module: nn.Module, targets: Sequence[str], rank: int = RANK, alpha: float = ALPHA) -> nn.Module:
    """The module, frozen, with adapters in the place of its linear layers of these names."""
    module.requires_grad_(False)
    found = [(owner, name, child) for owner in module.modules() for name, child in owner.named_children()]
    for owner, name, child in found:
        if name in targets and isinstance(child, nn.Linear):
            setattr(owner, name, AdaptedLinear(child, rank, alpha))
    assert any(parameter.requires_grad for parameter in module.parameters()), f"no linear layer is one of {targets}"
    return module
