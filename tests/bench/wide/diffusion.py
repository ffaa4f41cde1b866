"""diffusers: networks that take noise out of images, sound, films; autoencoders; their text and time conditions."""

from __future__ import annotations

from collections.abc import Callable

import diffusers
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.bench.wide.model import Brought, Made, noisy

ROWS, TEXT, WIDTH = 8, 6, 32


class Denoiser(nn.Module):
    """Noise added to clean latents at a time of the schedule, predicted by the network, as its trainers do it."""

    def __init__(self, net: nn.Module, conditions: tuple[str, ...]) -> None:
        super().__init__()
        self.net, self.conditions = net, conditions
        self.register_buffer("alphas", torch.linspace(0.9999, 0.98, 1000).cumprod(0))

    def forward(self, clean: Tensor, noise: Tensor, times: Tensor, *conditions: Tensor) -> Tensor:
        share = self.alphas[times].view(-1, *[1] * (clean.dim() - 1))
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        found = self.net(noisy, timestep=times, **dict(zip(self.conditions, conditions, strict=True)))
        return F.mse_loss(found.sample[:, : noise.shape[1]], noise)


class Coder(nn.Module):
    """An autoencoder's reconstruction and its latents' divergence, without a draw."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor) -> Tensor:
        latent = self.net.encode(image)
        spread = getattr(latent, "latent_dist", None)
        mean = spread.mode() if spread is not None else getattr(latent, "latents", getattr(latent, "latent", None))
        loss = F.mse_loss(self.net.decode(mean).sample, image)
        return loss if spread is None else loss + 1e-3 * spread.kl().mean()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def times() -> Tensor:
    return torch.randint(0, 1000, (ROWS,), generator=torch.Generator().manual_seed(3))


def denoiser(name: str, model: str, shape: tuple[int, ...], conditions: dict[str, Callable[[], Tensor]] | None = None,
             **sizes: object) -> Brought:  # fmt: skip
    given = conditions or {}

    def make() -> Made:
        net = noisy(Denoiser(getattr(diffusers, model)(**sizes), tuple(given)))
        clean, noise = drawn(ROWS, *shape), drawn(ROWS, *shape, seed=1)
        return net, (clean, noise, times(), *(condition() for condition in given.values())), None

    return Brought(f"diffusers {name}", "diffusers", make)


def coder(name: str, model: str, shape: tuple[int, ...] = (3, 16, 16), **sizes: object) -> Brought:
    def make() -> Made:
        return noisy(Coder(getattr(diffusers, model)(**sizes))), (drawn(ROWS, *shape),), None

    return Brought(f"diffusers {name}", "diffusers", make)


def text(width: int = WIDTH) -> dict[str, Callable[[], Tensor]]:
    return {"encoder_hidden_states": lambda: drawn(ROWS, TEXT, width, seed=4)}


def pooled(width: int = WIDTH) -> dict[str, Callable[[], Tensor]]:
    return text() | {"pooled_projections": lambda: drawn(ROWS, width, seed=5)}


def classes() -> Tensor:
    return torch.randint(0, 10, (ROWS,), generator=torch.Generator().manual_seed(6))


BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
UNET = {"sample_size": 8, "in_channels": 4, "out_channels": 4, **BLOCKS}
CROSS = UNET | {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": WIDTH, "attention_head_dim": 8,
}  # fmt: skip
HEADS = {"num_attention_heads": 4, "attention_head_dim": 8}
LATENT, FILM = (4, 8, 8), (4, 2, 8, 8)
CODED = {"in_channels": 3, "out_channels": 3, "latent_channels": 4, "norm_num_groups": 4}

MODELS = (
    denoiser("unet2d", "UNet2DModel", LATENT, **UNET, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
             up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8),
    denoiser("unet2d classes", "UNet2DModel", LATENT, {"class_labels": classes}, **UNET, num_class_embeds=10,
             down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
             attention_head_dim=8),
    denoiser("unet2d condition (SD 1.5)", "UNet2DConditionModel", LATENT, text(), **CROSS),
    denoiser("unet2d linear (SD 2)", "UNet2DConditionModel", LATENT, text(), **CROSS, use_linear_projection=True),
    denoiser("unet2d scale shift", "UNet2DConditionModel", LATENT, text(), **CROSS,
             resnet_time_scale_shift="scale_shift"),
    denoiser("unet3d", "UNet3DConditionModel", FILM, text(), **CROSS
             | {"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
                "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")}),
    denoiser("unet1d", "UNet1DModel", (4, 16), sample_size=16, in_channels=4, out_channels=4, extra_in_channels=32,
             block_out_channels=(16, 32), down_block_types=("DownBlock1DNoSkip", "DownBlock1D"),
             up_block_types=("UpBlock1D", "UpBlock1DNoSkip"), mid_block_type="UNetMidBlock1D"),
    denoiser("DiT", "DiTTransformer2DModel", LATENT, {"class_labels": classes}, **HEADS, in_channels=4, out_channels=8,
             num_layers=2, sample_size=8, patch_size=2, num_embeds_ada_norm=1000, norm_num_groups=4),
    denoiser("PixArt", "PixArtTransformer2DModel", LATENT, text(), **HEADS, in_channels=4, out_channels=8, num_layers=2,
             sample_size=8, patch_size=2, cross_attention_dim=WIDTH, caption_channels=WIDTH),
    denoiser("SD 3", "SD3Transformer2DModel", LATENT, pooled(), sample_size=8, patch_size=2, in_channels=4,
             num_layers=2,
             **HEADS, joint_attention_dim=WIDTH, caption_projection_dim=WIDTH, pooled_projection_dim=WIDTH,
             out_channels=4, pos_embed_max_size=8),
    denoiser("SD 3.5", "SD3Transformer2DModel", LATENT, pooled(), sample_size=8, patch_size=2, in_channels=4,
             num_layers=2, **HEADS, joint_attention_dim=WIDTH, caption_projection_dim=WIDTH, qk_norm="rms_norm",
             pooled_projection_dim=WIDTH, out_channels=4, pos_embed_max_size=8, dual_attention_layers=(0,)),
    denoiser("AuraFlow", "AuraFlowTransformer2DModel", LATENT, text(), sample_size=8, patch_size=2, in_channels=4,
             num_mmdit_layers=1, num_single_dit_layers=1, **HEADS, joint_attention_dim=WIDTH,
             caption_projection_dim=WIDTH, out_channels=4, pos_embed_max_size=16),
    denoiser("Sana", "SanaTransformer2DModel", LATENT, text(), sample_size=8, patch_size=1, in_channels=4,
             out_channels=4,
             num_layers=2, **HEADS, num_cross_attention_heads=4, cross_attention_head_dim=8, cross_attention_dim=WIDTH,
             caption_channels=WIDTH),
    denoiser("CogVideoX", "CogVideoXTransformer3DModel", (2, 4, 8, 8), text(), **HEADS, in_channels=4, out_channels=4,
             time_embed_dim=8, text_embed_dim=WIDTH, num_layers=2, sample_width=8, sample_height=8, sample_frames=5,
             patch_size=2, max_text_seq_length=TEXT),
    denoiser("Latte", "LatteTransformer3DModel", FILM, text(), **HEADS, in_channels=4, out_channels=4, num_layers=1,
             sample_size=8, patch_size=2, cross_attention_dim=WIDTH, caption_channels=WIDTH,
             norm_type="ada_norm_single",
             video_length=2),
    denoiser("Wan", "WanTransformer3DModel", (4, 2, 8, 8), text(), patch_size=(1, 2, 2), **HEADS, in_channels=4,
             out_channels=4, text_dim=WIDTH, freq_dim=16, ffn_dim=64, num_layers=2, rope_max_seq_len=32),
    denoiser("Mochi", "MochiTransformer3DModel", (4, 2, 8, 8), text()
             | {"encoder_attention_mask": lambda: torch.ones(ROWS, TEXT, dtype=torch.bool)}, patch_size=2, **HEADS,
             num_layers=2, pooled_projection_dim=16, in_channels=4, text_embed_dim=WIDTH, time_embed_dim=8,
             max_sequence_length=TEXT),
    denoiser("Allegro", "AllegroTransformer3DModel", (4, 2, 8, 8), text(), **HEADS, in_channels=4, out_channels=4,
             num_layers=1, cross_attention_dim=WIDTH, sample_width=8, sample_height=8, sample_frames=2, patch_size=2,
             caption_channels=WIDTH),
    denoiser("StableAudio", "StableAudioDiTModel", (4, 8), text() | {"global_hidden_states": lambda: drawn(ROWS, 1,
             32)},
             sample_size=8, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
             num_key_value_attention_heads=2, out_channels=4, cross_attention_dim=WIDTH, time_proj_dim=16,
             global_states_input_dim=32, cross_attention_input_dim=WIDTH),
    coder("AutoencoderKL", "AutoencoderKL", **CODED, block_out_channels=(16, 32),
          down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    coder("AutoencoderTiny", "AutoencoderTiny", encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16,
             16),
          num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
    coder("VQModel", "VQModel", in_channels=3, out_channels=3, latent_channels=4, norm_num_groups=4,
             num_vq_embeddings=16,
          block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2,
          up_block_types=("UpDecoderBlock2D",) * 2),
    coder("AutoencoderDC", "AutoencoderDC", in_channels=3, latent_channels=4, attention_head_dim=8,
          encoder_block_out_channels=(8, 16), decoder_block_out_channels=(8, 16), encoder_layers_per_block=(1, 1),
          decoder_layers_per_block=(1, 1), encoder_block_types=("ResBlock", "EfficientViTBlock"),
          decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_qkv_multiscales=((), (5,)),
          decoder_qkv_multiscales=((), (5,))),
    coder("AsymmetricAutoencoderKL", "AsymmetricAutoencoderKL", **CODED, down_block_types=("DownEncoderBlock2D",) * 2,
          up_block_types=("UpDecoderBlock2D",) * 2, down_block_out_channels=(16, 32), up_block_out_channels=(16, 32),
          layers_per_down_block=1, layers_per_up_block=1),
    coder("AutoencoderKLWan", "AutoencoderKLWan", (3, 5, 16, 16), base_dim=8, z_dim=4, dim_mult=[1, 1, 1, 1],
          num_res_blocks=1, latents_mean=[0.0] * 4, latents_std=[1.0] * 4),
)  # fmt: skip
