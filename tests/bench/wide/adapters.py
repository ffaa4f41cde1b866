"""peft: frozen models of transformers with adapters, prompts and rescalings that are trained."""

from __future__ import annotations

import importlib
import importlib.util

from torch import nn

from tests.bench.architectures.architecture import HEADS, HIDDEN, VOCABULARY, Architecture
from tests.bench.architectures.batches import text
from tests.bench.architectures.decoders import GROUPED, decoder
from tests.bench.architectures.encoders import OF_T5, seq2seq
from tests.bench.wide.model import Brought, Made, noisy

PROJECTIONS = ["q_proj", "v_proj"]
ALL = [*PROJECTIONS, "k_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]
BASE = decoder("llama", "Llama", GROUPED)


def adapted(name: str, kind: str, base: Architecture = BASE, **options: object) -> Brought:
    def make() -> Made:
        peft = importlib.import_module("peft")
        task = "SEQ_2_SEQ_LM" if base.kind == "encoder-decoder" else "CAUSAL_LM"
        net: nn.Module = peft.get_peft_model(base.module(), getattr(peft, f"{kind}Config")(task_type=task, **options))
        return noisy(net), base.example(), None

    return Brought(f"peft {name}", "peft", make)


KINDS = (
    adapted("lora", "Lora", r=4, target_modules=PROJECTIONS),
    adapted("lora everywhere", "Lora", r=4, target_modules=ALL),
    adapted("rank-stabilised lora", "Lora", r=4, target_modules=ALL, use_rslora=True),
    adapted("dora", "Lora", r=4, target_modules=PROJECTIONS, use_dora=True),
    adapted("lora with bias", "Lora", r=4, target_modules=ALL, bias="lora_only", lora_bias=True),
    adapted("lora and head", "Lora", r=4, target_modules=PROJECTIONS, modules_to_save=["lm_head"]),
    adapted("lora of embeddings", "Lora", r=4, target_modules=[*PROJECTIONS, "embed_tokens"]),
    adapted("adalora", "AdaLora", init_r=4, target_r=2, target_modules=PROJECTIONS, total_step=10),
    adapted("ia3", "IA3", target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    adapted("loha", "LoHa", r=4, target_modules=PROJECTIONS),
    adapted("lokr", "LoKr", r=4, target_modules=PROJECTIONS),
    adapted("oft", "OFT", r=0, oft_block_size=8, target_modules=PROJECTIONS),
    adapted("vera", "Vera", r=8, target_modules=PROJECTIONS),
    adapted("fourier", "FourierFT", n_frequency=20, target_modules=PROJECTIONS),
    adapted("hra", "HRA", r=4, target_modules=PROJECTIONS),
    adapted("layer norms", "LNTuning", target_modules=["input_layernorm", "post_attention_layernorm"]),
    adapted("prompt tuning", "PromptTuning", num_virtual_tokens=4),
    adapted("p-tuning", "PromptEncoder", num_virtual_tokens=4, encoder_hidden_size=16),
    adapted("prefix tuning", "PrefixTuning", num_virtual_tokens=4),
    adapted("lora of t5", "Lora", seq2seq("t5", "T5", OF_T5), r=4, target_modules=["q", "v"]),
    adapted("lora of gpt2", "Lora", Architecture("gpt2", "decoder", "GPT2LMHeadModel", "GPT2Config", {
        "n_embd": HIDDEN, "n_layer": 4, "n_head": HEADS, "n_positions": 64, "vocab_size": VOCABULARY, "bos_token_id": 1,
        "eos_token_id": 2}, text), r=4, target_modules=["c_attn"], fan_in_fan_out=True),
)  # fmt: skip
MODELS = KINDS if importlib.util.find_spec("peft") else ()
