"""What tests of the Hugging Face Trainer share: tiny models with random weights, records, a plan, and brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import components
import privypurse as pp
from made_once import made_once

components.require("hf")  # before what is not there everywhere: tests take it from here

import transformers  # noqa: E402

from privypurse.huggingface import Trainer  # noqa: E402

PEOPLE, TOKENS, WORDS, STEPS, BATCH = 12, 6, 50, 6, 5
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2(**changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_positions": TOKENS, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **sizes, **(dropout | changes)))


def adapted(model: Any) -> Any:
    """With LoRA, whose B is not zero: as it begins, A would have no gradient."""
    import peft

    made = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    with torch.no_grad():
        for value in made.parameters():
            if value.requires_grad:
                value.normal_(0.0, 0.1)
    return made


def bert() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=TOKENS, **sizes, **_NO_DROPOUT)
    return transformers.BertForSequenceClassification(config)


def sentences(model: Any, count: int = PEOPLE, seed: int = 1) -> list[dict[str, Tensor]]:
    """Records of different lengths, padded; labels are words, or for a classifier one class."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        words = torch.randint(1, WORDS, (TOKENS,), generator=generator)
        mask = (torch.arange(TOKENS) < 3 + number % (TOKENS - 2)).long()
        whole = hasattr(model, "classifier")
        labels = torch.tensor(number % 2) if whole else torch.where(mask > 0, words, -100)
        found.append({"input_ids": words * mask, "attention_mask": mask, "labels": labels})
    return found


@made_once
def planned(people: int = PEOPLE, **changes: Any) -> pp.Plan:
    budgets = pp.Budgets(np.where(np.arange(people) % 2, 4.0, 8.0), delta=1e-4)
    shape = {"steps": STEPS, "batch_size": BATCH, "accountant": "rdp", "at_most": 10.0}
    return pp.plan(budgets, **(shape | changes))


def settings(folder: Path, **changes: Any) -> transformers.TrainingArguments:
    quiet = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 2, "save_strategy": "no"}
    sizes = {"per_device_train_batch_size": 4, "learning_rate": 1e-2}
    return transformers.TrainingArguments(str(folder), **(quiet | sizes | changes))


def trainer(folder: Path, model: Any, *, plan: pp.Plan | None = None, data: Any = None, **options: Any) -> Trainer:
    """Options that Trainer has no name for are those of TrainingArguments."""
    ours = {"loss_fn", "person", "individual", "ledger", "purpose", "seed", "internal", "measured", "eval_dataset"}
    ours |= {"callbacks", "optimizers", "compute_metrics", "data_collator", "wide_sums"}
    more = {name: options.pop(name) for name in ours & set(options)}
    data = sentences(model) if data is None else data
    return Trainer(model, settings(folder, **options), plan=plan or planned(), train_dataset=data, **more)


def brute_force(model: Any, data: list[dict[str, Tensor]], clip_norm: float) -> list[Tensor]:
    """The clipped sum by the model's own loss, one record at a time: a batch of one has nobody to mix with."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    total = [torch.zeros_like(value) for value in parameters]
    for record in data:
        loss = model(**{name: value[None] for name, value in record.items()}).loss
        found = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((each**2).sum() for each in found))
        for sum_, each in zip(total, found, strict=True):
            sum_ += each * min(1.0, clip_norm / float(norm))
    return total


def flat(values: list[Tensor]) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in values])


class Counting(transformers.TrainerCallback):
    """Keeps what callbacks are told, and how often a step was released."""

    def __init__(self) -> None:
        self.steps, self.logs = [], []
        self.began: dict[str, Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **more: Any) -> None:
        self.began = {name: value.detach().clone() for name, value in model.named_parameters()}

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.steps.append(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
        self.logs.append(dict(logs))
