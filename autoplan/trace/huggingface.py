"""Hugging Face models: attention, masks and experts in a form that shards, and no caches.

For the trace the model's copy is given an attention of our own through the public AttentionInterface and
AttentionMaskInterface: causality is an argument rather than a mask, grouped keys and values are not repeated, padding
is a mask of [batch, 1, 1, keys].
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from autoplan.errors import TraceError
from autoplan.trace import mixtures
from autoplan.trace.branches import true_everywhere

PADDED = "autoplan"  # the user gave an attention mask, or positions
WRITTEN = "eager"  # transformers' name for attention as its model's file spells it, scores in memory
UNPADDED = "autoplan_unpadded"  # no padding is given: a mask of ones, as ``prepare`` makes one, is none


UNKNOWN = ("block_indices", "s_aux", "sinks", "softcap")  # what transformers' attentions may take besides


def library() -> Any:
    """transformers, where this process has imported it: without it no model can be one of its. Looked up rather than
    imported, for each rank of a program would otherwise spend seconds on it at its start."""
    return sys.modules.get("transformers")


def is_huggingface(model: nn.Module) -> bool:
    return library() is not None and isinstance(model, library().PreTrainedModel)


def prepare(model: nn.Module, padded: bool) -> None:
    """Makes a copied model ready for the trace: our attention, no caches.

    padded  whether the batch holds an attention mask or positions
    """
    if library() is None:
        return
    register()
    for module in model.modules():
        if is_huggingface(module):
            config: Any = module.config
            config.use_cache = False
            if takes_our_attention(module):
                config._attn_implementation = PADDED if padded else UNPADDED
        elif mixtures.prepare(module):
            own: Any = module.config
            own._experts_implementation = mixtures.NAME
    outermost = [m for _, m in outer_models(model)]
    for module in outermost:
        unpadded = takes_our_attention(module) and not padded
        if unpadded and "attention_mask" in inspect.signature(module.forward).parameters:
            module.register_forward_pre_hook(add_full_mask, with_kwargs=True)


def outer_models(model: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """Hugging Face models that lie in no other."""
    if is_huggingface(model):
        return [(path, model)]
    return [found for name, child in model.named_children() for found in outer_models(child, f"{path}.{name}")]


def takes_our_attention(module: Any) -> bool:
    """Models that look their attention up by name, and can run torch's own: without a cap on the scores, and not asked
    for as written (``attn_implementation="eager"``)."""
    if getattr(module.config, "_attn_implementation", None) == WRITTEN:
        return False
    capped = getattr(module.config, "attn_logit_softcapping", None) is not None
    table = getattr(sys.modules.get(type(module).__module__), "ALL_ATTENTION_FUNCTIONS", None)  # T5 says only by this
    looks_up = getattr(module, "_supports_attention_backend", False) or table is not None
    return bool(looks_up and getattr(module, "_supports_sdpa", False) and not capped)


def add_full_mask(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Gives the model an all-true mask, so that it does not look for packed sequences in its own positions."""
    ids = kwargs.get("input_ids", args[0] if args else None)
    if isinstance(ids, torch.Tensor) and ids.ndim == 2 and kwargs.get("attention_mask") is None and len(args) < 2:
        kwargs = {**kwargs, "attention_mask": torch.ones(ids.shape, dtype=torch.bool)}
    return args, kwargs


def register() -> None:
    """Registers under names of our own; doing so again changes nothing."""
    for name, mask in ((PADDED, padded_mask), (UNPADDED, unpadded_mask)):
        library().AttentionInterface.register(name, attention)
        library().AttentionMaskInterface.register(name, mask)
    library().integrations.moe.ALL_EXPERTS_FUNCTIONS.register(mixtures.NAME, mixtures.experts_forward)


def attention(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None, indices: torch.Tensor | None = None, **others: object,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """Attention over [batch, heads, sequence, head size]; the result is [batch, sequence, heads, head size].

    indices  the keys that each query sees, [batch, queries, count]: DeepSeek's sparse attention (2512.02556)

    TraceError where the model asks for something that changes what attention computes and that it hasn't.
    """
    for name in UNKNOWN:
        if others.get(name) is not None:
            cause = "the model gives its attention this, which the program's hasn't"
            raise TraceError(f"{type(module).__name__}: {name}", cause, 'plan it with attn_implementation="eager"')
    causal = bool(is_causal if is_causal is not None else getattr(module, "is_causal", True))
    causal = causal and query.shape[2] > 1 and attention_mask is None
    if position_bias is not None:
        attention_mask, causal = biased_mask(position_bias, attention_mask, causal), False
    if indices is not None:
        attention_mask, causal = chosen_mask(indices, key.shape[2], attention_mask, causal), False
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(
        query, key, value, attention_mask, dropout, causal, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2), None


def chosen_mask(indices: torch.Tensor, keys: int, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
    """A mask with what isn't chosen left out, too."""
    shape = (*indices.shape[:-1], keys)
    chosen = torch.zeros(shape, dtype=torch.bool, device=indices.device).scatter(-1, indices.long(), True)[:, None]
    if mask is None:
        rows = torch.arange(shape[1], device=indices.device)[:, None]
        return chosen & (rows >= torch.arange(keys, device=indices.device)[None, :]) if causal else chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def biased_mask(bias: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
    """A position bias with what may not be seen at the lowest number."""
    if mask is None and causal:
        rows = torch.arange(bias.shape[-2], device=bias.device)[:, None]
        mask = rows >= torch.arange(bias.shape[-1], device=bias.device)[None, :]
    if mask is None:
        return bias
    return torch.where(mask, bias, torch.finfo(bias.dtype).min) if mask.dtype == torch.bool else bias + mask


def unpadded_mask(attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    """A mask that the model makes of what else it is given hides what it says."""
    if attention_mask is not None and true_everywhere(attention_mask):
        attention_mask = None
    return padded_mask(**kwargs, attention_mask=attention_mask)


def padded_mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0, *, mask_function: Callable,
    attention_mask: torch.Tensor | None = None, local_size: int | None = None, allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False, **kwargs: Any,
) -> torch.Tensor | None:  # fmt: skip
    """A boolean mask that is true where a key is seen, or None where causality, or nothing, says it all.

    The pattern has [1 or batch, 1, queries, keys], padding [batch, 1, 1, keys].
    """
    everywhere = local_size is None or kv_length < local_size
    causal = allow_is_causal_skip and kv_length == q_length
    skips = causal or allow_is_bidirectional_skip
    if skips and everywhere and attention_mask is None:
        return None
    padding = None if attention_mask is None else attention_mask[:, None, None, :kv_length]
    if mask_function is library().masking_utils.bidirectional_mask_function and padding is not None:
        return padding
    pattern = library().masking_utils.sdpa_mask(
        1 if allow_is_causal_skip or allow_is_bidirectional_skip else batch_size, q_length, kv_length,
        q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function, attention_mask=None,
        allow_is_causal_skip=False, allow_is_bidirectional_skip=False,
        use_vmap=kwargs.get("use_vmap", False), device=kwargs.get("device", "cpu"),
    )  # fmt: skip
    assert pattern is not None, "its skips are off"
    return pattern if padding is None else pattern & padding
