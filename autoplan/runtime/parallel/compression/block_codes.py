"""Blocks of elements in few bits, each with a scale in float32 behind it: what an exchange sends as bytes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from autoplan.ir.buckets import BLOCK, SCALE_BYTES

LARGEST = 127
FLOAT8 = torch.float8_e4m3fn
BITS = 8  # in a byte


@dataclass(frozen=True)
class BlockCode:
    """How blocks go as bytes.

    encode  ([blocks, BLOCK], [blocks, 1] how many elements each has) -> [blocks, bytes] uint8
    decode  the reverse, into a dtype; what a block lacks of BLOCK is zero, and so is one of bytes that are zero
    """

    encode: Callable[[Tensor, Tensor], Tensor]
    decode: Callable[[Tensor, Tensor, torch.dtype], Tensor]


def encode_int8(blocks: Tensor, _: Tensor) -> Tensor:
    """Whole numbers up to 127, rounded to the nearest, of the block's largest: as ZeRO++ quantises gradients."""
    scale = (blocks.abs().amax(1, keepdim=True) / LARGEST).float()
    whole = (blocks / torch.where(scale == 0, 1.0, scale)).round().to(torch.int8)
    return torch.cat([whole.view(torch.uint8), scale.view(torch.uint8)], 1)


def decode_int8(sent: Tensor, _: Tensor, dtype: torch.dtype) -> Tensor:
    return sent[:, :BLOCK].view(torch.int8).to(dtype) * scales(sent, dtype)


def encode_fp8(blocks: Tensor, _: Tensor) -> Tensor:
    """Float8 of four bits exponent and three mantissa, whose largest is the block's: as FP8-LM scales a gradient."""
    scale = (blocks.abs().amax(1, keepdim=True) / torch.finfo(FLOAT8).max).float()
    narrow = (blocks / torch.where(scale == 0, 1.0, scale)).to(FLOAT8)
    return torch.cat([narrow.view(torch.uint8), scale.view(torch.uint8)], 1)


def decode_fp8(sent: Tensor, _: Tensor, dtype: torch.dtype) -> Tensor:
    return sent[:, :BLOCK].view(FLOAT8).to(dtype) * scales(sent, dtype)


def encode_signs(blocks: Tensor, counts: Tensor) -> Tensor:
    """Signs, with the mean size of the block's elements."""
    scale = (blocks.abs().sum(1, keepdim=True) / counts.clamp(min=1)).float()
    bits = (blocks >= 0).view(len(blocks), -1, BITS).to(torch.uint8) << places(blocks.device)
    return torch.cat([bits.sum(2, dtype=torch.uint8), scale.view(torch.uint8)], 1)


def decode_signs(sent: Tensor, counts: Tensor, dtype: torch.dtype) -> Tensor:
    bits = sent[:, :-SCALE_BYTES, None] >> places(sent.device) & 1
    signs = bits.flatten(1).to(dtype).mul_(2).sub_(1).mul_(scales(sent, dtype))
    return signs.masked_fill_(torch.arange(BLOCK, device=sent.device) >= counts, 0.0)


def places(device: torch.device) -> Tensor:
    """Of a byte's bits."""
    return torch.arange(BITS, dtype=torch.uint8, device=device)


def scales(sent: Tensor, dtype: torch.dtype) -> Tensor:
    """[blocks, 1]."""
    return sent[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32).to(dtype)


INT8, FP8 = BlockCode(encode_int8, decode_int8), BlockCode(encode_fp8, decode_fp8)
SIGNS = BlockCode(encode_signs, decode_signs)
