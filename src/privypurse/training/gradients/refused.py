"""Layers whose gradient for one record depends on the others, or that remember them (rule 12)."""

from torch import nn

from privypurse.training.gradients.registry import refuse

_MIXES = (
    "it normalises over the batch, so one record's gradient depends on all others and clipping bounds nothing. "
    "Replace it by nn.GroupNorm; privypurse.fix(model) does that for you"
)
for kind in (nn.modules.batchnorm._BatchNorm,):
    refuse(kind, _MIXES)
