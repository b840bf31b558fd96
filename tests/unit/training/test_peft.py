"""Adapters of peft on models of transformers: norms against one record at a time, and what is refused by name."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import privypurse as pp
from components import require

require("hf")
require("peft")

import peft  # noqa: E402
import transformers  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]

RECORDS, LENGTH, WORDS = 5, 7, 50
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ALL = "all-linear"

FAMILIES = {
    "bert": lambda: transformers.BertForSequenceClassification(
        transformers.BertConfig(**SMALL, intermediate_size=24, num_labels=3)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**{**SMALL, "num_attention_heads": 4}, num_key_value_heads=2, intermediate_size=24)
    ),
    "vit": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8,
            patch_size=4, num_labels=3,
        )
    ),
}  # fmt: skip
IA3 = {
    "bert": (["key", "value", "output.dense"], ["output.dense"]),
    "gpt2": (["c_attn", "mlp.c_proj"], ["mlp.c_proj"]),
    "llama": (["k_proj", "v_proj", "down_proj"], ["down_proj"]),
    "vit": (["k_proj", "v_proj", "fc2"], ["fc2"]),
}


def batch(family: str) -> dict[str, Tensor]:
    """Records of different lengths, padded to a public one; the last has one word."""
    generator = torch.Generator().manual_seed(0)
    if family == "vit":
        return {
            "pixel_values": torch.randn(RECORDS, 3, 8, 8, generator=generator),
            "labels": torch.randint(0, 3, (RECORDS,), generator=generator),
        }
    words = torch.randint(0, WORDS, (RECORDS, LENGTH), generator=generator)
    mask = (torch.arange(LENGTH) < torch.tensor([LENGTH, 5, 6, 3, 2])[:, None]).long()
    labels = torch.randint(0, 3, (RECORDS,), generator=generator) if family == "bert" else words.where(mask > 0, -100)
    return {"input_ids": words, "attention_mask": mask, "labels": labels}


def adapted(family: str, config: peft.PeftConfig) -> nn.Module:
    """The family's model with adapters whose weights are moved away from where they begin."""
    torch.manual_seed(0)
    model = peft.get_peft_model(FAMILIES[family](), config)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value += 0.3 * torch.randn_like(value)
    return model


def one_by_one(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """The gradient norm of each record's loss, as transformers makes it of that record alone."""
    found = []
    for place in range(RECORDS):
        loss = model(**{name: value[place : place + 1] for name, value in given.items()}).loss
        trained = [value for value in model.parameters() if value.requires_grad]
        gradients = torch.autograd.grad(loss, trained)
        found.append(torch.cat([value.flatten() for value in gradients]).norm())
    return torch.stack(found)


def require_true_norms(model: nn.Module, family: str) -> None:
    model.eval()  # no dropout
    given = batch(family)
    expected = one_by_one(model, given)
    labels = given.pop("labels")
    share = (pp.per_record_norms(model, pp.losses.for_model(model), given, labels) / expected).tolist()
    assert min(share) > 1 - 1e-4
    assert max(share) < 1.05


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_with_lora_are_the_true_ones(family):
    require_true_norms(adapted(family, peft.LoraConfig(r=3, target_modules=ALL)), family)


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_with_ia3_are_the_true_ones(family):
    targets, feedforward = IA3[family]
    config = peft.IA3Config(target_modules=targets, feedforward_modules=feedforward)
    require_true_norms(adapted(family, config), family)


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ALL, "modules_to_save": ["lm_head"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"target_modules": ["q_proj"], "use_rslora": True, "lora_bias": True},
        {"target_modules": ["q_proj"], "bias": "all"},
    ],
    ids=["a head trained whole", "embeddings", "scaled, with biases", "biases of the model"],
)
def test_norms_with_more_of_lora_are_the_true_ones(options):
    require_true_norms(adapted("llama", peft.LoraConfig(r=3, **options)), "llama")


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("gpt2", lambda: peft.LoraConfig(r=3, target_modules=["wte", "c_attn"], ensure_weight_tying=True)),
        ("gpt2", lambda: peft.LoraConfig(r=3, target_modules=["wte", "lm_head"], ensure_weight_tying=True)),
        ("gpt2", lambda: peft.LoraConfig(r=3, target_modules=["c_attn"], modules_to_save=["wte"])),
        ("bert", lambda: peft.LoraConfig(r=3, target_modules=["query"], task_type="SEQ_CLS")),
        ("llama", lambda: peft.LoraConfig(r=3, target_modules=["q_proj"], trainable_token_indices=[1, 2])),
        ("llama", lambda: peft.VeraConfig(r=4, target_modules=["q_proj"])),
        ("llama", lambda: peft.OFTConfig(oft_block_size=4, target_modules=["q_proj"])),
    ],
    ids=["tied to the head", "both tied", "a table trained whole", "a classifier", "single words", "VeRA", "OFT"],
)
def test_norms_with_what_is_tied_or_shared_are_the_true_ones(family, config):
    require_true_norms(adapted(family, config()), family)


class Texts(Dataset):
    def __init__(self, family: str) -> None:
        self.given = batch(family)

    def __len__(self) -> int:
        return 4 * RECORDS

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {name: value[place % RECORDS] for name, value in self.given.items()}


def trained(model: nn.Module, family: str, how: str = "train", steps: int = 2) -> None:
    plan = pp.plan(
        pp.Budgets([3.0] * 4 * RECORDS), "uniform", steps=steps, batch_size=8, clip_norm=0.5, accountant="rdp"
    )
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    loss = pp.losses.for_model(model)
    if how == "train":
        pp.train(model, optimizer, Texts(family), plan, loss)
        return
    private, optimizer, loader = pp.make_private(model, optimizer, Texts(family), plan)
    private.train()
    for given in loader:
        optimizer.zero_grad()
        labels = given.pop("labels")
        optimizer.backward(loss(private(**given), labels))
        optimizer.step()


@pytest.mark.parametrize("how", ["train", "make_private"])
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_trained_and_nothing_else(family, how):
    """From where LoRA begins, with dropout."""
    model = peft.get_peft_model(FAMILIES[family](), peft.LoraConfig(r=3, target_modules=ALL, lora_dropout=0.1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained(model, family, how)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, value in model.named_parameters() if value.requires_grad}


def test_a_bypassed_adapter_is_named(monkeypatch):
    """What opacus#820 did in silence, with peft's own layer."""

    def past_its_layers(self, x: Tensor, *_: object, **__: object) -> Tensor:
        first, second = self.lora_A["default"].weight, self.lora_B["default"].weight
        return self.base_layer(x) + x @ first.T @ second.T

    model = peft.get_peft_model(FAMILIES["llama"](), peft.LoraConfig(r=3, target_modules=["q_proj"]))
    trained(model, "llama")
    monkeypatch.setattr(peft.tuners.lora.Linear, "forward", past_its_layers)
    with pytest.raises(pp.InvalidInput, match=r"q_proj\.lora_A\.default\.weight would get noise alone"):
        trained(model, "llama")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: peft.LoHaConfig(r=2, target_modules=["q_proj"]), "q_proj.*cannot be run again for each record"),
        (
            lambda: peft.VBLoRAConfig(r=2, num_vectors=8, vector_length=8, target_modules=["q_proj"]),
            "would get noise alone",
        ),
        (lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), "prompt_encoder"),
    ],
    ids=["LoHa", "VB-LoRA", "prompts"],
)
def test_what_cannot_be_trained_is_refused_by_name(config, message):
    with pytest.raises(pp.InvalidInput, match=message):
        trained(adapted("llama", config()), "llama")


def test_dora_is_refused_by_name():
    model = peft.get_peft_model(FAMILIES["llama"](), peft.LoraConfig(r=3, target_modules=["q_proj"], use_dora=True))
    with pytest.raises(pp.InvalidInput, match=r"DoraLinearLayer.*use_dora=False"):
        trained(model, "llama")
