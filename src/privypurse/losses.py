"""Losses for language, one for each record: made of a model's logits and the labels, by the record's own tokens.

A model of Hugging Face that is given labels gives back one mean over all tokens of the batch, in which every record
has a say in the others' (rule 12: isolation). So labels stay out of the model, and its logits go in here::

    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    optimizer.backward(pp.losses.causal_language_model(output, batch["labels"]))

``output`` is what the model gave, or its logits. Labels of -100 do not count, as in transformers. ``tokens`` says
what a record's loss is: the "mean" over its own tokens that count, or their "sum"; a record without any has loss 0.
Which one it is must be chosen without looking at the data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse.errors import InvalidInput, Unsupported

IGNORED = -100
"""The label of what does not count."""

Loss = Callable[[Any, Tensor], Tensor]
"""loss_fn(output, labels): one loss for each record."""


def sequence_classification(output: Any, labels: Tensor) -> Tensor:
    """One label for each record, of a text or an image: its kind follows from shapes and dtypes, as in transformers.

    Whole numbers are classes (cross-entropy); floats beside several logits say for each class whether it holds
    (binary cross-entropy, the mean over classes); beside one logit labels are numbers to be met (squared error).
    """
    logits = _logits(output)
    if logits.dim() != 2:
        raise InvalidInput(
            f"logits have shape {tuple(logits.shape)}; sequence_classification needs (records, classes)"
        )
    several = logits.shape[1] > 1
    if several and not labels.is_floating_point():
        _require_shape(logits[:, 0], labels)
        return F.cross_entropy(logits, labels.long(), ignore_index=IGNORED, reduction="none")
    labels = labels.to(logits.dtype).reshape(labels.shape[0], -1)
    _require_shape(logits, labels)
    by_entry = F.binary_cross_entropy_with_logits if several else F.mse_loss
    return by_entry(logits, labels, reduction="none").mean(dim=1)


def token_classification(output: Any, labels: Tensor, *, tokens: str = "mean") -> Tensor:
    """A label for each token, (records, tokens): also for models from sequence to sequence, whose labels are the
    target text (let the data set give ``decoder_input_ids`` beside them)."""
    logits = _logits(output)
    if logits.dim() != 3:
        raise InvalidInput(f"logits have shape {tuple(logits.shape)}; needed are (records, tokens, classes)")
    _require_shape(logits[:, :, 0], labels)
    if tokens not in ("mean", "sum"):
        raise InvalidInput(f"tokens is {tokens!r}; it must be 'mean' or 'sum'")
    each = F.cross_entropy(
        logits.flatten(0, 1), labels.reshape(-1).long(), ignore_index=IGNORED, reduction="none"
    ).view(labels.shape)
    total = each.sum(dim=1)
    return total if tokens == "sum" else total / (labels != IGNORED).sum(dim=1).clamp(min=1)


def masked_language_model(output: Any, labels: Tensor, *, tokens: str = "mean") -> Tensor:
    """The word at each masked place, (records, tokens); all other places have the label -100."""
    return token_classification(output, labels, tokens=tokens)


def causal_language_model(output: Any, labels: Tensor, *, tokens: str = "mean") -> Tensor:
    """The next word at each place: ``labels`` are the words themselves (often ``input_ids``, -100 where padded),
    and are shifted here."""
    return token_classification(output, F.pad(labels, (0, 1), value=IGNORED)[:, 1:], tokens=tokens)


def question_answering(output: Any, labels: Tensor) -> Tensor:
    """Where each record's answer begins and ends, (records, 2): the mean of both, as in transformers.

    ``output`` has start_logits and end_logits, or is these two. A place outside of the text does not count.
    """
    ends = ("start_logits", "end_logits")
    both: Any = output if isinstance(output, tuple | list) else [getattr(output, end, None) for end in ends]
    if len(both) != 2 or not all(isinstance(each, Tensor) and each.dim() == 2 for each in both):
        raise InvalidInput(
            f"output is a {type(output).__name__} without start_logits and end_logits of (records, tokens); give "
            "what a model for question answering gave, or these two"
        )
    if labels.shape != (both[0].shape[0], 2):
        raise InvalidInput(
            f"labels have shape {tuple(labels.shape)}; question_answering needs {(both[0].shape[0], 2)}: for each "
            "record where its answer begins and where it ends"
        )
    places = labels.long().where((labels >= 0) & (labels < both[0].shape[1]), IGNORED)
    found = [
        F.cross_entropy(_logits(logits), places[:, end], ignore_index=IGNORED, reduction="none")
        for end, logits in enumerate(both)
    ]
    return (found[0] + found[1]) / 2


_OF_TOKENS: dict[str, Callable[..., Tensor]] = {
    "ForCausalLM": causal_language_model,
    "LMHeadModel": causal_language_model,
    "ForMaskedLM": masked_language_model,
    "ForTokenClassification": token_classification,
    "ForConditionalGeneration": token_classification,
}
_OF_RECORDS: dict[str, Loss] = {
    "ForSequenceClassification": sequence_classification,
    "ForImageClassification": sequence_classification,
    "ForQuestionAnswering": question_answering,
}


def for_model(model: Any, *, tokens: str = "mean") -> Loss:
    """The loss that fits a model of Hugging Face, by the name of its class; one of ``peft`` is looked into."""
    inner = getattr(model, "inner", model)
    base = getattr(inner, "get_base_model", None)
    name = type(base() if base is not None else inner).__name__
    whole = next((loss for ending, loss in _OF_RECORDS.items() if name.endswith(ending)), None)
    if whole is not None:
        return whole
    found = next((loss for ending, loss in _OF_TOKENS.items() if name.endswith(ending)), None)
    if found is None:
        raise Unsupported(
            f"model is a {name}, for which no loss of single records is known; known are those that end in "
            f"{', '.join((*_OF_RECORDS, *_OF_TOKENS))}. Give loss_fn(output, labels), one loss for each record: "
            "pp.losses.causal_language_model and its like take the logits of any model"
        )
    return partial(found, tokens=tokens)


def _logits(output: Any) -> Tensor:
    """The logits of an output, in float32 or better."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise InvalidInput(
            f"output is a {type(output).__name__} without logits; give the model's output or its logits"
        )
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def _require_shape(logits: Tensor, labels: Tensor) -> None:
    if labels.shape != logits.shape:
        raise InvalidInput(
            f"labels have shape {tuple(labels.shape)}; beside these logits they must have {tuple(logits.shape)}"
        )
