"""Models of Hugging Face as they come: every record's norm and the clipped sum against autograd, one at a time."""

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from components import require
from privypurse.training import mechanism
from privypurse.training.gradients import check_rule, for_each_record, per_record_norms
from privypurse.training.gradients.rule import RULES
from training_tools import Keeping, quiet

require("hf")
import transformers as hf  # noqa: E402
from transformers.models.bart.modeling_bart import BartScaledWordEmbedding  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

pytestmark = [
    pytest.mark.hf,
    pytest.mark.needs("hf"),
    pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning"),
]
VOCABULARY, WIDTH, TOKENS, RECORDS, CLASSES, SIDE = 60, 16, 7, 6, 3, 32
BELOW, ABOVE = 1e-4, 0.05  # what a norm may be off
EOS = 2
torch.set_num_threads(1)

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "num_labels": CLASSES,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}
_BERT = {**_COMMON, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_DISTIL = {
    "vocab_size": VOCABULARY,
    "dim": WIDTH,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 24,
    "num_labels": CLASSES,
}
_DISTIL |= {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
_DISTIL |= {"max_position_embeddings": 32}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32, "pad_token_id": 0}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": EOS, "num_labels": CLASSES}
_GPT2_QUIET = {**_GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_DECODER = {**_COMMON, "num_key_value_heads": 1}
_BART = {"vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
_BART |= {"max_position_embeddings": 32, "num_labels": CLASSES, "decoder_start_token_id": 2}
_BART |= {"scale_embedding": True}
_T5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
_T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
_OPT = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
_OPT |= {"ffn_dim": 24, "max_position_embeddings": 32, "dropout": 0.0, "word_embed_proj_dim": 8}
_VIT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_VIT |= {"image_size": SIDE, "patch_size": 16, "num_labels": CLASSES}
_RESNET = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
    "num_labels": CLASSES,
}


@dataclass(frozen=True)
class Family:
    """A model and what it is given; outputs are classes of records, or of tokens."""

    model: str
    config: str
    options: dict[str, Any]
    images: bool = False
    decoder: bool = False
    change: Callable[[nn.Module], nn.Module] = field(default=lambda model: model)

    def made(self, attention: str | None = None, **options: Any) -> nn.Module:
        torch.manual_seed(0)
        config = getattr(hf, self.config)(**{**self.options, **options})
        chosen = {} if attention is None else {"attn_implementation": attention}
        model = getattr(hf, self.model)._from_config(config, **chosen)
        return self.change(model.train())

    def data(self, records: int = RECORDS) -> TensorDataset:
        torch.manual_seed(1)
        if self.images:
            return TensorDataset(torch.rand(records, 3, SIDE, SIDE), torch.randint(CLASSES, (records,)))
        ids, mask = torch.randint(4, VOCABULARY, (records, TOKENS)), torch.ones(records, TOKENS, dtype=torch.int64)
        ids[:, -1] = EOS
        if not self.decoder and "Bart" not in self.model:
            mask[1, 4:] = 0  # a shorter record
            ids[1, 4:] = 0
        return TensorDataset(ids, mask, torch.randint(4, VOCABULARY, (records, TOKENS)))

    def named(self, given: list[Tensor]) -> dict[str, Tensor]:
        """Inputs as tokenizers and image processors name them."""
        if self.images:
            return {"pixel_values": given[0]}
        more = {"decoder_input_ids": given[0]} if self.decoder else {}
        return {"input_ids": given[0], "attention_mask": given[1], **more}


def loss(output: Any, y: Tensor) -> Tensor:
    """One loss for each record, from logits of a ModelOutput: of its class, or the mean over its next tokens."""
    logits = output.logits
    if logits.dim() == 2:
        return F.cross_entropy(logits, (y if y.dim() == 1 else y[:, 0]) % CLASSES, reduction="none")
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), y[:, 1:], reduction="none").mean(1)


FAMILIES = {
    "bert": Family("BertForSequenceClassification", "BertConfig", _BERT),
    "bert, masked": Family("BertForMaskedLM", "BertConfig", _BERT),
    "roberta": Family("RobertaForSequenceClassification", "RobertaConfig", {**_BERT, "pad_token_id": 1}),
    "distilbert": Family("DistilBertForSequenceClassification", "DistilBertConfig", _DISTIL),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", _GPT2_QUIET),
    "gpt2, classes": Family("GPT2ForSequenceClassification", "GPT2Config", _GPT2_QUIET),
    "llama": Family("LlamaForCausalLM", "LlamaConfig", _DECODER),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", _DECODER),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 8}),
    "opt": Family("OPTForCausalLM", "OPTConfig", _OPT),
    "opt, norms last": Family("OPTForCausalLM", "OPTConfig", {**_OPT, "do_layer_norm_before": False}),
    "bart": Family("BartForSequenceClassification", "BartConfig", _BART),
    "bart, sequences": Family("BartForConditionalGeneration", "BartConfig", _BART, decoder=True),
    "t5": Family("T5ForConditionalGeneration", "T5Config", _T5, decoder=True),
    "mt5": Family("MT5ForConditionalGeneration", "MT5Config", _T5, decoder=True),
    "vit": Family("ViTForImageClassification", "ViTConfig", _VIT, images=True),
    "resnet": Family("ResNetForImageClassification", "ResNetConfig", _RESNET, images=True, change=pp.fix),
}
WITHOUT_ATTENTION = ("resnet",)
CASES = [
    (name, attention)
    for name in FAMILIES
    for attention in (("eager",) if name in WITHOUT_ATTENTION else ("eager", "sdpa"))
]


def alone(family: Family, model: nn.Module, data: TensorDataset) -> list[list[Tensor]]:
    """Gradients in float64 by autograd, of one record at a time."""
    model = copy.deepcopy(model).double()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = []
    for row in zip(*data.tensors, strict=True):
        *given, y = (value.unsqueeze(0) for value in row)
        given = [value.double() if value.is_floating_point() else value for value in given]
        own = loss(model(**family.named(given)), y).sum()
        found.append(list(torch.autograd.grad(own, trained, materialize_grads=True)))
    return found


def planned(records: int, steps: int = 1) -> pp.Plan:
    return pp.plan(pp.Budgets([8.0] * records), steps=steps, batch_size=records, clip_norm=0.5, method="uniform")


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The norms that steps from now on are clipped by. No noise, and everybody is drawn."""
    quiet(monkeypatch)
    honest, seen = mechanism.norms, []

    def norms(*given: Any) -> Tensor:
        seen.append(honest(*given))
        return seen[-1]

    monkeypatch.setattr(mechanism, "norms", norms)
    return seen


def compare(found: Tensor, released: list[Tensor], true: list[list[Tensor]], clip: float = 0.5) -> float:
    """The largest error of a norm; and the released gradient is the clipped sum, by a public divisor."""
    norms = torch.stack([torch.cat([part.flatten() for part in each]).norm() for each in true])
    off = (found.double() - norms) / norms
    assert float(off.min()) >= -BELOW, off
    assert float(off.max()) <= ABOVE, off
    factors = (clip / norms).clamp(max=1.0)
    for number, value in enumerate(released):
        expected = sum(factor * each[number] for factor, each in zip(factors, true, strict=True)) / len(true)
        torch.testing.assert_close(value.double(), expected, rtol=2e-2, atol=2e-3 * clip)
    return float(off.abs().max())


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_the_ordinary_loop(name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    model, data = family.made(attention), family.data()
    true, seen = alone(family, model, data), watched(monkeypatch)
    optimizer = Keeping(model)
    private, stepping, loader = pp.make_private(model, optimizer, data, planned(RECORDS))
    for *given, y in loader:
        stepping.backward(loss(private(**family.named(given)), y))
        stepping.step()
    (found,) = seen
    print(f"{name}, {attention}: a norm is off by at most {compare(found, optimizer.seen, true):.1e}")  # pytest -s


class Dictionaries(Dataset[dict[str, Tensor]]):
    """As data sets of Hugging Face give records."""

    def __init__(self, family: Family, data: TensorDataset) -> None:
        self._family, self._data = family, data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        *given, y = self._data[number]
        return {**self._family.named(given), "labels": y}


@pytest.mark.parametrize("name", FAMILIES)
def test_train(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    model, data = family.made(), family.data()
    true, seen = alone(family, model, data), watched(monkeypatch)
    optimizer = Keeping(model)
    pp.train(model, optimizer, Dictionaries(family, data), planned(RECORDS), loss)
    compare(seen[0], optimizer.seen, true)


WITH_DROPOUT = {
    "bert": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "gpt2": {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    "llama": {"attention_dropout": 0.1},
    "bart, sequences": {"dropout": 0.1, "attention_dropout": 0.1},
    "vit": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_with_dropout_draws_and_noise(name: str, attention: str) -> None:
    """Several steps as in earnest: batches of all sizes, one record and nobody among them."""
    family = FAMILIES[name]
    model, data = family.made(attention, **WITH_DROPOUT[name]), family.data(8)
    before = copy.deepcopy(model.state_dict())
    plan = pp.plan(pp.Budgets([8.0] * 8), steps=8, batch_size=2, clip_norm=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private, stepping, loader = pp.make_private(model, optimizer, data, plan, seed=1)
    sizes = []
    for *given, y in loader:
        sizes.append(len(y))
        stepping.backward(loss(private(**family.named(given)), y))
        stepping.step()
    assert min(sizes) <= 1 < max(sizes)
    assert stepping.left_out == 0
    still = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert not still  # noise moves every weight


def test_what_a_decoder_remembers_of_earlier_tokens_does_no_harm() -> None:
    """use_cache is on in most configurations; keys and values come back beside the logits, and are nobody's loss."""
    family = FAMILIES["gpt2"]
    model, data = family.made(), family.data()
    assert model.config.use_cache
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private, stepping, loader = pp.make_private(model, optimizer, data, planned(RECORDS))
    for *given, y in loader:
        output = private(**family.named(given))
        assert output.past_key_values is not None
        stepping.backward(loss(output, y))
        stepping.step()


def test_a_mask_of_four_dimensions() -> None:
    """(records, 1, tokens, tokens) from the data set, and (1, 1, tokens, tokens), a constant of the loop."""
    family = FAMILIES["llama"]
    ids, _, y = family.data().tensors
    causal = torch.tril(torch.ones(TOKENS, TOKENS, dtype=torch.bool))
    own = causal.expand(RECORDS, 1, TOKENS, TOKENS).clone()
    data = TensorDataset(ids, own, y)
    for common in (None, causal[None, None]):
        model = family.made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private, stepping, loader = pp.make_private(model, optimizer, data, planned(RECORDS))
        for some, mask, labels in loader:
            output = private(input_ids=some, attention_mask=mask if common is None else common)
            stepping.backward(loss(output, labels))
            stepping.step()


def _norm(module: str, kind: str) -> nn.Module:
    layer: nn.Module = getattr(importlib.import_module(f"transformers.models.{module}"), kind)(WIDTH)
    nn.init.uniform_(layer.weight)
    return layer


LAYERS = {
    "Conv1D": lambda: Conv1D(12, WIDTH),
    "square Conv1D": lambda: Conv1D(WIDTH, WIDTH),
    "LlamaRMSNorm": lambda: _norm("llama.modeling_llama", "LlamaRMSNorm"),
    "MistralRMSNorm": lambda: _norm("mistral.modeling_mistral", "MistralRMSNorm"),
    "Qwen2RMSNorm": lambda: _norm("qwen2.modeling_qwen2", "Qwen2RMSNorm"),
    "Qwen3RMSNorm": lambda: _norm("qwen3.modeling_qwen3", "Qwen3RMSNorm"),
    "T5LayerNorm": lambda: _norm("t5.modeling_t5", "T5LayerNorm"),
}


@pytest.mark.parametrize("shape", [(), (2,), (5,), (64,), (3, 2)], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_are_known_by_name(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check_rule(LAYERS[name](), torch.randn(RECORDS, *shape, WIDTH))  # refuses a layer without a rule of its own


def test_a_table_with_a_scale() -> None:
    table = BartScaledWordEmbedding(VOCABULARY, WIDTH, padding_idx=0, embed_scale=3.0)
    ids = torch.randint(0, 9, (RECORDS, TOKENS))
    check_rule(table, ids)
    table.embed_scale = 1.0
    plain = per_record_norms(table, lambda output, _: output.sum((1, 2)), ids, None)
    table.embed_scale = 3.0
    torch.testing.assert_close(per_record_norms(table, lambda output, _: output.sum((1, 2)), ids, None), 3 * plain)


@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_a_linear_layer_of_gpt2_is_no_linear_layer_of_torch(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a square weight fits both ways, and only its gradient's order tells."""
    monkeypatch.setitem(RULES, Conv1D, RULES[nn.Linear])
    with pytest.raises(pp.InvalidInput, match="Conv1D"):
        check_rule(LAYERS["square Conv1D"](), torch.randn(RECORDS, tokens, WIDTH))


def test_a_table_that_is_looked_up_once_for_all_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: T5's tables of relative positions as T5 looks them up."""
    monkeypatch.setattr(for_each_record, "look_up_for_each", lambda *given: None)
    family = FAMILIES["t5"]
    model = family.made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(pp.InvalidInput, match=r"relative_attention_bias.*requires_grad_\(False\)"):
        pp.train(model, optimizer, Dictionaries(family, family.data()), planned(RECORDS), loss)


def test_positions_of_the_batch_are_refused() -> None:
    """The twin: BERT's one row of position ids, made of the records at hand."""
    family = FAMILIES["bert"]
    model, data = family.made(), family.data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    table = model.get_submodule("bert.embeddings")

    def shifted(layer: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        ids = options["input_ids"]
        return given, {**options, "position_ids": (torch.arange(TOKENS) + ids.sum(0)).unsqueeze(0) % 32}

    table.register_forward_pre_hook(shifted, with_kwargs=True)
    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        pp.train(model, optimizer, Dictionaries(family, data), planned(RECORDS), loss)


def test_the_loss_that_a_model_makes_itself_is_refused() -> None:
    family = FAMILIES["bert"]
    model = family.made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private, _, loader = pp.make_private(model, optimizer, family.data(), planned(RECORDS))
    ids, mask, y = next(iter(loader))
    with pytest.raises(pp.InvalidInput, match="made inside the model"):
        private(input_ids=ids, attention_mask=mask, labels=y[:, 0] % CLASSES).loss.backward()


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_captured_steps_are_those_of_the_eager_loop(name: str) -> None:
    """One row for all records becomes one for each inside of a graph too, without asking the device anything."""
    family = FAMILIES[name]
    ids, _, y = family.data(40).tensors
    trained = []
    for capture in (True, False):
        model = family.made().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        execution = pp.Execution(capture=capture)
        plan = pp.plan(pp.Budgets([8.0] * 40), steps=3, batch_size=20, clip_norm=0.5)
        done = pp.train(model, optimizer, TensorDataset(ids, y), plan, loss, execution=execution, seed=1)
        assert done.how == ("captured" if capture else "eager")
        trained.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(trained[0], trained[1], rtol=1e-3, atol=1e-4)


@pytest.mark.needs("cuda")
def test_a_model_that_asks_the_device_goes_through_as_it_is() -> None:
    """BART counts the ends of its texts on the way; what is begun after a capture that failed is as before."""
    family = FAMILIES["bart"]
    ids, _, y = family.data(40).tensors
    plan = pp.plan(pp.Budgets([8.0] * 40), steps=3, batch_size=20, clip_norm=0.5)
    for capture in (True, None):
        model = family.made().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"execution": pp.Execution(capture=capture), "seed": 1}
        if capture:
            with pytest.raises(pp.Unsupported, match="capture=False"):
                pp.train(model, optimizer, TensorDataset(ids, y), plan, loss, **options)
        else:
            done = pp.train(model, optimizer, TensorDataset(ids, y), plan, loss, **options)
            assert done.how == "eager"
    torch.testing.assert_close(torch.randn(2000, device="cuda").std().item(), 1.0, rtol=0.1, atol=0.0)
