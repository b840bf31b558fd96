"""Per-example gradient norms and clip-weighted sums, without per-example gradients where they can be avoided.

The tape notes what went into each layer and what came back to it (`tape`); a layer's rule makes norms and sums of it
(`rule`, and one file for each kind of layer); clipping puts them together (`clipping`), in exact enough floats
(`numerics`). For a layer of one's own: `handles`, `Rule`, `Call`, `check_rule`, and docs/own-layers.md.
"""

# Imported for what they register: each file is the rule of one kind of layer.
from privypurse.training.gradients import (  # noqa: F401
    convolution,
    embedding,
    linear,
    normalisation,
    recurrent,
    transformers_layers,
)
from privypurse.training.gradients.check_rule import check_rule
from privypurse.training.gradients.clipping import clip_factors, clipped_sum, norms, per_record_norms, recorded, sums
from privypurse.training.gradients.rule import Call, Rule, handles
from privypurse.training.gradients.tape import Recorder, Tape

__all__ = [
    "Call",
    "Recorder",
    "Rule",
    "Tape",
    "check_rule",
    "clip_factors",
    "clipped_sum",
    "handles",
    "norms",
    "per_record_norms",
    "recorded",
    "sums",
]
