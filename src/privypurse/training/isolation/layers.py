"""Layers of torch whose gradient for one record depends on the others, or that remember them (rule 12: isolation)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

from privypurse.errors import InvalidInput

_KNOWN_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)
# Of bitsandbytes, GPTQ, AWQ, AQLM, EETQ, HQQ and torchao, and the layers that peft puts around them: known by their
# names, since none of these packages has to be there.
_FEW_BITS = re.compile(
    "4bit|8bit|GPTQ|A[wW][qQ]Lora|WQLinear|A[qQ][lL][mM]|E[eE][tT][qQ]|H[qQ][qQ]|Torchao|QuantLinear|QuantizedLinear"
)
_OLD = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")


def require_known_apart(layers: Iterable[tuple[str, nn.Module]], prefix: str) -> None:
    """Raise for a layer, by its name behind ``prefix``, that cannot be trained privately."""
    for name, layer in layers:
        why = _complaint(layer)
        if why is not None:
            where = ".".join(part for part in (prefix, name) if part) or "model"
            raise InvalidInput(f"layer {where} ({type(layer).__name__}): {why}")


def _complaint(layer: nn.Module) -> str | None:
    """Why this layer cannot be trained privately, if so."""
    learns = any(parameter.requires_grad for parameter in layer.parameters())
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        # Frozen and in evaluation mode it only applies numbers that it knew before, which mixes nothing.
        if layer.track_running_stats and not layer.training and not learns:
            return None
        return (
            "it normalises over the batch, so one record's gradient depends on all others and clipping bounds "
            "nothing. Replace it by nn.GroupNorm; privypurse.fix(model) does that for you"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.max_norm is not None:
            return "max_norm rewrites the rows that were looked up, without noise; leave it out"
        if layer.scale_grad_by_freq:
            return "scale_grad_by_freq divides by how often the whole batch looks a row up; leave it out"
    if isinstance(layer, nn.RNNBase) and type(layer) not in _KNOWN_RECURRENT and learns and not layer.batch_first:
        return (
            "batch_first=False puts time first, but of a subclass the first dimension must count records: make it "
            "with batch_first=True and give it (records, time, features)"
        )
    if hasattr(layer, "expert_capacity"):  # routers of Switch Transformers and NLLB-MoE, frozen ones too
        return (
            "an expert takes so many tokens of a list and no more (expert_capacity), so whose tokens come first "
            "decides about others'. Take a model whose experts take all that are sent to them, such as Mixtral or "
            "Qwen3-MoE, freeze these, and train adapters in its attention"
        )
    return _of_few_bits(layer) or _rewritten(layer)


def _of_few_bits(layer: nn.Module) -> str | None:
    """Weights of 4 or 8 bits, frozen ones too, and DoRA."""
    names = [kind.__name__ for kind in type(layer).__mro__]
    weight = getattr(layer, "weight", None)
    if any(map(_FEW_BITS.search, names)) or (isinstance(weight, nn.Parameter) and not weight.is_floating_point()):
        return (
            "its weights are held in few bits, in a format whose kernels are not known to keep records apart (those "
            "of 8 bits choose outliers by the whole batch). Load the model without quantization, in bfloat16 or "
            "float32: adapters (LoRA) save memory there too"
        )
    if any(name.startswith("Dora") for name in names):
        return (
            "DoRA (LoRA with a learned magnitude) divides by a norm of its own weights in a way that no layer rule "
            "sees; make the adapter with use_dora=False"
        )
    return None


def _rewritten(layer: nn.Module) -> str | None:
    """Old weight_norm and spectral_norm compute the weight before the layer runs, where no rule sees it."""
    hooks = [type(hook) for hook in layer._forward_pre_hooks.values()]
    found = next((hook.__name__ for hook in hooks if hook.__module__ in _OLD), None)
    if found is None or not any(value.requires_grad for value in layer.parameters(recurse=False)):
        return None
    return (
        f"its weight is made by a hook ({found}) out of other parameters, which no layer rule sees: they would "
        "get noise alone. Take it off (nn.utils.remove_weight_norm, remove_spectral_norm); "
        "torch.nn.utils.parametrizations.weight_norm can be trained"
    )
