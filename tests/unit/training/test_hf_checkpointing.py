"""Models of Hugging Face with gradient checkpointing and in bfloat16, whole and with adapters."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from components import require
from privypurse.training import gradients
from training_tools import Keeping, quiet

require("hf")
require("peft")

import peft  # noqa: E402
import transformers as hf  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.hf
RECORDS, TOKENS, WORDS, CLASSES = 6, 7, 50, 3
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 24, "num_labels": CLASSES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DROPOUT = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
GPT2 = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
BART = {"vocab_size": WORDS, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24}
BART |= {"decoder_ffn_dim": 24, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_labels": CLASSES}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 8}
VIT |= {"patch_size": 4, "num_labels": CLASSES}

FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertForSequenceClassification(hf.BertConfig(**SMALL, **DROPOUT)),
    "roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**SMALL, **DROPOUT)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2, resid_pdrop=0.2, attn_pdrop=0.2)),
    "llama": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**SMALL, num_key_value_heads=1, attention_dropout=0.2, tie_word_embeddings=True)
    ),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART, dropout=0.2)),
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT, **DROPOUT)),
}
T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
OPT = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24}
FAMILIES["t5"] = lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5, dropout_rate=0.2, decoder_start_token_id=0))
FAMILIES["opt"] = lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT, dropout=0.2, word_embed_proj_dim=16))
NOT_REENTRANT = {"use_reentrant": False}


def made(name: str, *, again: bool, adapters: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = FAMILIES[name]()
    model.config.use_cache = False  # checkpointing turns it off, and what is added in another order rounds otherwise
    if adapters:
        model = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules="all-linear", lora_dropout=0.2))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += 0.1 * torch.randn_like(parameter)  # B begins with 0, and A then has no gradient
    if again:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=NOT_REENTRANT)
    return model.train()


def data(name: str) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(3, WORDS, (RECORDS, TOKENS), generator=generator)
    words[:, -1] = 2
    labels = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
    if name == "vit":
        return TensorDataset(torch.randn(RECORDS, 3, 8, 8, generator=generator), labels)
    return TensorDataset(words, labels if name in ("bert", "roberta") else words)


def given(name: str, x: Tensor) -> dict[str, Tensor]:
    if name == "vit":
        return {"pixel_values": x}
    return {"input_ids": x, "decoder_input_ids": x} if name in ("bart", "t5") else {"input_ids": x}


def loss_of(model: nn.Module) -> Callable[[Any, Tensor], Tensor]:
    return pp.losses.for_model(model)


def released(model: nn.Module, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """A step without noise that everybody is in: the clipped sum."""
    quiet(monkeypatch)
    plan = pp.plan(pp.Budgets([8.0] * RECORDS), "uniform", steps=1, batch_size=RECORDS, clip_norm=0.5)
    keeping = Keeping(nn.ParameterList(each for each in model.parameters() if each.requires_grad))
    private, optimizer, loader = pp.make_private(model, keeping, data(name), plan)
    for x, y in loader:
        optimizer.backward(loss_of(model)(private(**given(name, x)), y))
        optimizer.step()
    return keeping.seen


@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_checkpointing_changes_nothing(name: str, adapters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout: to the bit, so masks are the same ones."""
    plain, again = (
        released(made(name, again=again, adapters=adapters), name, monkeypatch) for again in (False, True)
    )
    assert len(plain) == len(again) > 0
    assert any(value.any() for value in plain)
    assert all(map(same if name == "t5" else torch.equal, plain, again))


def same(one: Tensor, other: Tensor) -> bool:
    """T5's table of relative positions is read by every block: what comes back to it is added in another order."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.skipif(not hasattr(hf.PreTrainedModel, "activation_checkpointing_enable"), reason="of transformers 5.23")
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("options", [{"every_n_layers": 2}, {"offload": True}], ids=["every other", "offload"])
def test_some_blocks_and_a_tape_in_the_hosts_memory(
    options: dict[str, Any], adapters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():  # without one there is no pinned memory
        monkeypatch.setattr(hf.modeling_utils, "save_on_cpu", lambda **_: torch.autograd.graph.save_on_cpu())
    plain, again = (made("llama", again=False, adapters=adapters) for _ in range(2))
    again.activation_checkpointing_enable(**options)
    one, other = (released(model, "llama", monkeypatch) for model in (plain, again))
    assert any(value.any() for value in one)
    assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_of_blocks_are_forgotten_in_between(name: str) -> None:
    x, y = data(name).tensors
    counts = []
    for again in (False, True):
        model = made(name, again=again)
        tape = gradients.Tape(RECORDS)
        losses = loss_of(model)(gradients.Recorder(model).forward(tape, **given(name, x)), y)
        counts.append((sum(not call.inputs for call in tape.calls), len(tape.calls)))
        losses.sum().backward()
        assert all(call.inputs for call in tape.finished())
    (kept, calls), (forgotten, calls_again) = counts
    assert kept == 0
    assert calls_again == calls
    assert forgotten >= 10  # layers of two blocks


def test_hooks_that_force_gradients_are_where_they_were_and_their_tensors_would_be_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, (x, y) = made("llama", again=True, adapters=True), data("llama").tensors
    hooks = model.get_input_embeddings()._forward_hooks
    before = list(hooks.items())
    assert before
    pp.per_record_norms(model, loss_of(model), given("llama", x), y)
    assert list(hooks.items()) == before
    monkeypatch.setattr("privypurse.training.gradients.forced_gradients._NAMES", ())
    with pytest.raises(pp.InvalidInput, match="requires gradients"):
        pp.per_record_norms(model, loss_of(model), given("llama", x), y)


def test_reentrant_checkpointing_is_refused_by_name() -> None:
    model = made("llama", again=False)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(pp.InvalidInput, match="use_reentrant=False"):
        gradients.Recorder(model).forward(gradients.Tape(RECORDS), **given("llama", data("llama").tensors[0]))


def alone(model: nn.Module, name: str) -> Tensor:
    """Every record's norm in float32, by plain autograd."""
    norms, trained = [], [each for each in model.parameters() if each.requires_grad]
    for x, y in zip(*(value.split(1) for value in data(name).tensors), strict=True):
        found = torch.autograd.grad(loss_of(model)(model(**given(name, x)), y).sum(), trained, materialize_grads=True)
        norms.append(torch.cat([part.flatten() for part in found]).norm())
    return torch.stack(norms)


@pytest.mark.parametrize("again", [False, True], ids=["", "run again"])
@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("name", FAMILIES)
def test_norms_under_bfloat16_autocast(name: str, adapters: bool, again: bool) -> None:
    model = made(name, again=again, adapters=adapters)
    for layer in model.modules():  # no dropout, but checkpointing, which a model in evaluation mode leaves out
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        for option in ("attention_dropout", "dropout", "dropout_prob", "attn_pdrop"):
            if isinstance(getattr(layer, option, None), float):
                setattr(layer, option, 0.0)
    x, y = data(name).tensors
    expected, loss = alone(model, name), loss_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pp.per_record_norms(model, loss, given(name, x), y)
    error = found / expected - 1
    assert found.dtype == torch.float32
    assert float(error.abs().max()) < 0.05
    assert float(error.abs().max()) > 1e-6  # autocast was on
