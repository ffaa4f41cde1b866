"""How adapters of peft are saved: by the model that peft made, in its format, of the values that a program has."""

import sys
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

OURS = ("state_dict", "is_main_process", "save_function")
"""What loops say of who saves and what: the values are the program's, on the one rank that has them."""

INJECTED = (
    "adapters of peft's were injected, without a configuration to save: the whole model is saved, under its own names, "
    "which from_pretrained doesn't read. Use peft.get_peft_model, or model.add_adapter, to save adapters alone"
)

Save = Callable[[str, Mapping[str, Tensor], Mapping[str, object]], None]
"""(folder, values by the user's names, further arguments of save_pretrained)"""


def adapters_of(module: nn.Module) -> Save | None:
    """None where peft has made none of it: neither the module, nor what transformers' ``add_adapter`` put into it."""
    peft = sys.modules.get("peft")  # which is there, if it made the module
    wrapped = peft is not None and isinstance(module, peft.PeftModel)
    if not wrapped and not getattr(module, "_hf_peft_config_loaded", False):
        if peft is not None and any(isinstance(m, peft.tuners.tuners_utils.BaseTunerLayer) for m in module.modules()):
            print(f"autoplan: {INJECTED}", file=sys.stderr, flush=True)
        return None
    write: Callable[..., None] = module.save_pretrained  # type: ignore[assignment]
    prompts = getattr(module, "prompt_encoder", None) if wrapped else None

    def save(folder: str, values: Mapping[str, Tensor], said: Mapping[str, object]) -> None:
        if prompts is not None:
            put(prompts, values)
        write(folder, state_dict=values, **{name: given for name, given in said.items() if name not in OURS})

    return save


@torch.no_grad()
def put(prompts: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Learned prompts, which peft computes from the module's own values, whatever state it is given."""
    for name, parameter in prompts.named_parameters("prompt_encoder"):
        parameter.copy_(values[name])
