"""`pp.losses` beside the losses that transformers makes of one record alone; padded at either end."""

import pytest
import torch
from torch import Tensor

import privypurse as pp
from components import require

require("hf")

import transformers  # noqa: E402

pytestmark = pytest.mark.hf

RECORDS, LENGTH, WORDS = 4, 8, 40
SMALL = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = {**SMALL, "intermediate_size": 24}
GPT2 = {"n_positions": LENGTH, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}

MODELS = {
    "classes": lambda: transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=3)),
    "words of texts": lambda: transformers.BertForTokenClassification(transformers.BertConfig(**BERT, num_labels=3)),
    "answers": lambda: transformers.BertForQuestionAnswering(transformers.BertConfig(**BERT)),
    "masked words": lambda: transformers.RobertaForMaskedLM(
        transformers.RobertaConfig(**BERT, max_position_embeddings=LENGTH + 2)
    ),
    "next words": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=WORDS, **GPT2)),
}


def batch(what: str, left: bool) -> dict[str, Tensor]:
    """Records of different lengths, padded to a public one, on the left or on the right."""
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(LENGTH) < torch.tensor([8, 5, 3, 6])[:, None]).long()
    mask = mask.flip(1) if left else mask
    words = torch.randint(2, WORDS, (RECORDS, LENGTH), generator=generator).where(mask > 0, 1)
    if what == "classes":
        return {"input_ids": words, "attention_mask": mask, "labels": torch.tensor([0, 2, 1, 1])}
    if what == "answers":
        ends = torch.tensor([[1, 3], [0, 0], [2, 2], [4, 5]])
        return {"input_ids": words, "attention_mask": mask, "labels": ends}
    labels = words % 3 if what == "words of texts" else words
    return {"input_ids": words, "attention_mask": mask, "labels": labels.where(mask > 0, -100)}


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("what", MODELS)
def test_a_record_has_the_loss_and_the_norm_that_it_has_alone(what, left):
    """Positions that follow from the mask (RoBERTa) are each record's own."""
    torch.manual_seed(0)
    model = MODELS[what]().eval()
    given = batch(what, left)
    losses, norms = [], []
    for place in range(RECORDS):
        alone = {name: value[place : place + 1] for name, value in given.items()}
        if what == "answers":
            alone["start_positions"], alone["end_positions"] = alone.pop("labels").unbind(1)
        loss = model(**alone).loss
        gradients = torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
        losses.append(loss.detach())
        norms.append(torch.cat([value.flatten() for value in gradients]).norm())
    labels, loss_fn = given.pop("labels"), pp.losses.for_model(model)
    with torch.no_grad():
        torch.testing.assert_close(loss_fn(model(**given), labels), torch.stack(losses), rtol=1e-5, atol=1e-6)
    share = pp.per_record_norms(model, loss_fn, given, labels) / torch.stack(norms)
    assert float(share.min()) > 1 - 1e-4
    assert float(share.max()) < 1.05
