"""Operators that torch composes by looking at values, or doesn't compose, written as others that have rules.

The decomposer (``trace.passes.decompose``) takes these first.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

aten = torch.ops.aten


def pairwise_distances(x: Tensor, p: float = 2.0) -> Tensor:
    """``F.pdist``: of rows i < j, in order."""
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return torch.linalg.vector_norm(x[first] - x[second], p, dim=-1)


def repeated_places(repeats: Tensor, *, output_size: int) -> Tensor:
    """Which entry stands at each of ``output_size`` places when each is repeated as often as is said. Where the numbers
    don't add up, as torch refuses, no place has an entry."""
    ends = repeats.cumsum(0)
    places = torch.arange(output_size, device=repeats.device)
    found = torch.searchsorted(ends, places, right=True)
    return torch.where(ends[-1] == output_size, found, len(repeats))


def repeated(x: Tensor, repeats: Tensor, dim: int | None = None, *, output_size: int) -> Tensor:
    """``torch.repeat_interleave`` to a size that is said."""
    flat, dim = (x.flatten(), 0) if dim is None else (x, dim)
    repeats = repeats.expand(flat.shape[dim]) if repeats.ndim == 0 or len(repeats) == 1 else repeats
    return flat.index_select(dim, repeated_places(repeats, output_size=output_size))


def waves(
    spectrum: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, normalized: bool = False, onesided: bool | None = None,
    length: int | None = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """``torch.istft``: the windows' waves added up, by what the squared windows add up to; that this is nowhere zero,
    torch reads from values."""
    hop, size = hop_length or n_fft // 4, win_length or n_fft
    bins, frames = spectrum.shape[-2:]
    lead, norm = spectrum.shape[:-2], "ortho" if normalized else "backward"
    spectra = spectrum.reshape(math.prod(lead), bins, frames)
    if return_complex:
        pieces = torch.fft.ifft(spectra, dim=1, norm=norm)
    else:  # torch reads one side of both, too
        pieces = torch.fft.irfft(spectra, n=n_fft, dim=1, norm=norm)
    kind = pieces.real.dtype if return_complex else pieces.dtype
    window = torch.ones(size, dtype=kind, device=spectrum.device) if window is None else window
    before = (n_fft - size) // 2
    window = torch.nn.functional.pad(window, (before, n_fft - size - before))[:, None]
    added, weight = summed(pieces * window, hop), summed((window * window).expand(1, n_fft, frames), hop)
    start, whole = (n_fft // 2 if center else 0), n_fft + hop * (frames - 1)
    stop = start + length if length is not None else whole - start
    wave = added[:, start : min(stop, whole)] / weight[:, start : min(stop, whole)]
    return torch.nn.functional.pad(wave, (0, max(0, stop - whole))).reshape(*lead, -1)


def summed(pieces: Tensor, hop: int) -> Tensor:
    """Pieces [b, n, frames], each begun ``hop`` places after the one before, added up where they overlap."""
    if pieces.is_complex():
        return torch.complex(summed(pieces.real, hop), summed(pieces.imag, hop))
    size, frames = pieces.shape[1:]
    return torch.nn.functional.fold(pieces, (1, size + hop * (frames - 1)), (1, size), stride=(1, hop))[:, 0, 0]


COMPOSITIONS: Mapping[torch._ops.OpOverload, Callable[..., object]] = {
    aten._pdist_forward.default: pairwise_distances, aten.repeat_interleave.self_Tensor: repeated,
    aten.repeat_interleave.Tensor: repeated_places, aten.istft.default: waves,
}  # fmt: skip
