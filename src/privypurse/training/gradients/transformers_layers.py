"""Layers of Hugging Face's transformers, known by name, so that nothing is imported which nobody uses.

The way for any layer handles them too, and makes every record's gradient for that: of GPT-2's linear layers, which
hold most of it, that is about as many copies of the model as there are records.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from privypurse.training.gradients.embedding import EmbeddingRule
from privypurse.training.gradients.linear import LinearRule, by_token, weighted_tokens
from privypurse.training.gradients.numerics import products
from privypurse.training.gradients.rule import Call, Rule, handles_named

_MODELS = "transformers.models"


@handles_named("transformers.pytorch_utils.Conv1D")
class TransposedLinearRule(LinearRule):
    """GPT-2's linear layer: x W + b, the weight being (inputs, outputs)."""

    def weight_sum(self, call: Call, weights: Tensor) -> Tensor:
        a, g = weighted_tokens(call, weights)
        return a.T @ g

    def weight(self, call: Call) -> Tensor:
        a, g = map(by_token, call.operands())
        return products(a.transpose(1, 2), g)

    def in_order(self, call: Call, kept: Tensor) -> Tensor:
        return kept.reshape(call.inputs[0].shape[-1], call.output_gradient.shape[-1])


@handles_named(f"{_MODELS}.bart.modeling_bart.BartScaledWordEmbedding")
class ScaledEmbeddingRule(EmbeddingRule):
    """A table whose rows are multiplied by a constant."""

    def tokens(self, call: Call) -> tuple[Tensor, Tensor]:
        index, g = super().tokens(call)
        layer: Any = call.module
        return index, g * layer.embed_scale


@handles_named(
    f"{_MODELS}.llama.modeling_llama.LlamaRMSNorm",
    f"{_MODELS}.mistral.modeling_mistral.MistralRMSNorm",
    f"{_MODELS}.qwen2.modeling_qwen2.Qwen2RMSNorm",
    f"{_MODELS}.qwen3.modeling_qwen3.Qwen3RMSNorm",
    f"{_MODELS}.t5.modeling_t5.T5LayerNorm",
)
class ScaledRule(Rule):
    """Layers that end in ``normalised · weight``, over the last dimension: what they give for a weight of ones."""

    features = -1
    records_anywhere = True

    def per_record(self, call: Call) -> dict[str, Tensor]:
        a, g = call.input_and_gradient()
        layer: nn.Module = call.module
        ones = torch.ones(a.shape[-1], dtype=a.dtype, device=a.device)
        normalised: Tensor = torch.func.functional_call(layer, {"weight": ones}, (a,))
        return {"weight": by_token(normalised * g).sum(dim=1)}
