"""Megatron's tensor parallelism by hand (Shoeybi et al. 2019): column- and row-parallel products with f and g as
autograd functions, queries, keys and values in one product, gate and up in one, a vocabulary-parallel loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.bench.pairs.byhand.parts import IGNORED, adamw, computing, parts, shifted
from tests.bench.pairs.measured import Step


class CopyToRanks(Function):
    """*f*: nothing forward, a sum over the ranks backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class ReduceFromRanks(Function):
    """*g*: a sum over the ranks forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def own(weight: Tensor, dim: int = 0) -> Tensor:
    """This rank's part."""
    return weight.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()].clone()


class Layer(nn.Module):
    """A Llama layer, this rank's heads and columns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.input_norm, self.output_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.head_dim = attention.head_dim
        each = [own(p.weight) for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        self.widths = [w.shape[0] for w in each]
        self.qkv = nn.Parameter(torch.cat(each))
        self.o = nn.Parameter(own(attention.o_proj.weight, 1))
        self.gate_up = nn.Parameter(torch.cat([own(mlp.gate_proj.weight), own(mlp.up_proj.weight)]))
        self.down = nn.Parameter(own(mlp.down_proj.weight, 1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rows, length, _ = x.shape
        h = CopyToRanks.apply(self.input_norm(x))
        q, k, v = (
            part.view(rows, length, -1, self.head_dim).transpose(1, 2)
            for part in F.linear(h, self.qkv).split(self.widths, -1)
        )
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        a = a.transpose(1, 2).reshape(rows, length, -1)
        x = x + ReduceFromRanks.apply(F.linear(a, self.o))
        h = CopyToRanks.apply(self.output_norm(x))
        gate, up = F.linear(h, self.gate_up).chunk(2, -1)
        return x + ReduceFromRanks.apply(F.linear(F.silu(gate) * up, self.down))


class VocabParallelLoss(Function):
    """Cross-entropy over logits split by the vocabulary, [tokens, own part]: sums of the tokens that count."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        greatest = logits.amax(-1)
        dist.all_reduce(greatest, dist.ReduceOp.MAX)
        shifted = logits - greatest.unsqueeze(-1)
        local = targets - dist.get_rank() * logits.shape[-1]
        here = (local >= 0) & (local < logits.shape[-1])
        local = local.masked_fill(~here, 0)
        exponents = shifted.exp()
        both = torch.stack([shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1) * here, exponents.sum(-1)])
        dist.all_reduce(both)
        counted = targets != IGNORED
        ctx.save_for_backward(exponents.div_(both[1].unsqueeze(-1)), local, here, counted)
        return ((both[1].log() - both[0]) * counted).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        softmax, local, here, counted = ctx.saved_tensors
        found = softmax.scatter_add(-1, local.unsqueeze(-1), -here.to(softmax.dtype).unsqueeze(-1))
        return found.mul_((counted * gradient).unsqueeze(-1)), None


class Llama(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        inner = module.base_model
        self.embedding = nn.Parameter(own(inner.embed_tokens.weight))
        self.rotary, self.norm = inner.rotary_emb, inner.norm
        self.layers = nn.ModuleList(map(Layer, inner.layers))
        self.head = nn.Parameter(own(module.lm_head.weight))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        local = ids - dist.get_rank() * self.embedding.shape[0]
        here = (local >= 0) & (local < self.embedding.shape[0])
        rows = F.embedding(local.masked_fill(~here, 0), self.embedding)
        x = ReduceFromRanks.apply(rows.masked_fill(~here.unsqueeze(-1), 0))
        cos, sin = self.rotary(x, torch.arange(ids.shape[1]).unsqueeze(0))
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(CopyToRanks.apply(self.norm(x)), self.head).float()
        targets = shifted(labels)
        return VocabParallelLoss.apply(logits.flatten(0, 1), targets.flatten()) / (targets != IGNORED).sum()


def llama(module: nn.Module, batch: Mapping[str, Tensor], precision: str, count: int) -> Step:
    parallel = Llama(module)
    microbatches, optimizer = parts(batch, count), adamw(parallel.parameters())

    def run() -> Tensor:
        optimizer.zero_grad()
        total = []
        for microbatch in microbatches:
            with computing(precision):
                loss = parallel(microbatch["input_ids"], microbatch["labels"]) / count
            loss.backward()
            total.append(loss.detach())
        optimizer.step()
        return sum(total[1:], total[0])

    return Step(run, lambda: [*parallel.parameters(), *parallel.buffers(), *batch.values()])
