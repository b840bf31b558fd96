"""Per-record gradient norms and clip-weighted sums, without per-record gradients where they can be avoided."""

# Imported for what they register: each file is the rule of one kind of layer.
from privypurse.training.gradients import convolution, embedding, linear, normalisation, refused
from privypurse.training.gradients.clipped import clip_factors, clipped_sum, norms, per_record_norms, recorded, sums
from privypurse.training.gradients.looking import look
from privypurse.training.gradients.tape import Recorder, Tape

__all__ = [
    "Recorder",
    "Tape",
    "clip_factors",
    "clipped_sum",
    "convolution",
    "embedding",
    "linear",
    "look",
    "normalisation",
    "norms",
    "per_record_norms",
    "recorded",
    "refused",
    "sums",
]
