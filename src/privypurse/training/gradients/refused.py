"""Layers whose gradient for one record depends on the others, or that remember them (rule 12)."""

from torch import nn

from privypurse.training.gradients.registry import refuse

_MIXES = (
    "it normalises over the batch, so one record's gradient depends on all others and clipping bounds nothing. "
    "Replace it by nn.GroupNorm; privypurse.fix(model) does that for you"
)


def _mixes(layer: nn.Module) -> str | None:
    """Frozen and in evaluation mode it only applies numbers that it knew before, which mixes nothing."""
    assert isinstance(layer, nn.modules.batchnorm._BatchNorm)
    learns = any(parameter.requires_grad for parameter in layer.parameters())
    return None if layer.track_running_stats and not layer.training and not learns else _MIXES


def _counts(layer: nn.Module) -> str | None:
    assert isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    if layer.max_norm is not None:
        return "max_norm rewrites the rows that were looked up, without noise; leave it out"
    if layer.scale_grad_by_freq:
        return "scale_grad_by_freq divides by how often the whole batch looks a row up; leave it out"
    return None


refuse(nn.modules.batchnorm._BatchNorm, _mixes)
refuse(nn.Embedding, _counts)
refuse(nn.EmbeddingBag, _counts)
