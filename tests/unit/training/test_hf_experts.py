"""Mixtures of experts: adapters beside frozen ones, and refusals by name of what sends one's tokens by others'."""

from typing import Any

import pytest
import torch
from torch import nn

import privypurse as pp
from components import require

require("hf")
require("peft")

import peft  # noqa: E402
import transformers as hf  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]
RECORDS, TOKENS, WORDS = 6, 7, 40
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 24, "num_key_value_heads": 2, "max_position_embeddings": 16}
MODELS = {
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**SMALL, num_local_experts=4)),
    "qwen3": lambda: hf.Qwen3MoeForCausalLM(
        hf.Qwen3MoeConfig(**SMALL, moe_intermediate_size=8, num_experts=4, num_experts_per_tok=2, head_dim=8)
    ),
}
T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "num_experts": 4}
FULL = {
    "switch": lambda: hf.SwitchTransformersForConditionalGeneration(
        hf.SwitchTransformersConfig(**T5, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)
    ),
    "nllb": lambda: hf.NllbMoeForConditionalGeneration(
        hf.NllbMoeConfig(
            vocab_size=WORDS,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            num_experts=4,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
        )
    ),
}


def adapted(model: nn.Module) -> Any:
    names = sorted(
        {name for name in ("q_proj", "q") if any(n.endswith(f".{name}") for n, _ in model.named_modules())}
    )
    made = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=names))
    with torch.no_grad():
        for value in made.parameters():
            if value.requires_grad:
                value.normal_(0.0, 0.1)
    return made


@pytest.mark.parametrize("name", MODELS)
def test_adapters_beside_frozen_experts_have_the_norms_of_single_records(name: str) -> None:
    torch.manual_seed(0)
    model, words = adapted(MODELS[name]()), torch.randint(3, WORDS, (RECORDS, TOKENS))
    loss, trained = pp.losses.for_model(model), [value for value in model.parameters() if value.requires_grad]
    alone = []
    for one in words.split(1):
        parts = torch.autograd.grad(loss(model(input_ids=one), one).sum(), trained)
        alone.append(torch.cat([part.flatten() for part in parts]).norm())
    found = pp.per_record_norms(model, loss, {"input_ids": words}, words)
    torch.testing.assert_close(found, torch.stack(alone), rtol=1e-4, atol=0.0)
    plan = pp.plan(pp.Budgets([4.0] * RECORDS, delta=1e-4), steps=2, batch_size=3, accountant="rdp")
    data = [{"input_ids": one, "labels": one} for one in words]
    assert pp.train(model, torch.optim.SGD(trained, lr=0.1), data, plan, loss).steps == 2


@pytest.mark.parametrize("name", MODELS)
def test_experts_that_are_trained_are_refused(name: str) -> None:
    model, words = MODELS[name](), torch.randint(3, WORDS, (RECORDS, TOKENS))
    with pytest.raises(pp.InvalidInput, match=r"layers\.\d\.mlp"):
        pp.per_record_norms(model, pp.losses.for_model(model), {"input_ids": words}, words)


@pytest.mark.parametrize("name", FULL)
def test_experts_with_a_capacity_are_refused_though_they_are_frozen(name: str) -> None:
    model, words = adapted(FULL[name]()), torch.randint(3, WORDS, (RECORDS, TOKENS))
    given = {"input_ids": words, "decoder_input_ids": words}
    with pytest.raises(pp.InvalidInput, match="expert_capacity"):
        pp.per_record_norms(model, pp.losses.for_model(model), given, words)
