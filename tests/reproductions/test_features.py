"""Features of a record depend on that record and on public constants alone."""

import json
import sys

import numpy as np
import pytest
import torch

from privypurse.errors import InvalidInput
from reproductions import data, features

CPU = torch.device("cpu")
NOISE = {"mean": [0.1 * c for c in range(54)], "deviation": [1.0 + c for c in range(54)]}


@pytest.mark.parametrize("how", ["groups", "noise", "both"])
def test_scaling_looks_at_nobody_else(how: str) -> None:
    values = torch.rand(5, 54, 4, 4, generator=torch.Generator().manual_seed(0))
    whole = features.scaled(values, how, NOISE)
    for record in range(5):
        assert torch.allclose(features.scaled(values[record : record + 1], how, NOISE)[0], whole[record], atol=1e-5)
    if how != "noise":
        assert whole.flatten(1).std(dim=1) == pytest.approx(1.0, rel=0.02)
    with pytest.raises(InvalidInput, match="scaling is 'batch'"):
        features.scaled(values, "batch", NOISE)


def test_views() -> None:
    image = torch.arange(36.0).reshape(1, 1, 6, 6)
    assert torch.equal(features.seen(image, "flip")[0, 0, 0], torch.tensor([5.0, 4, 3, 2, 1, 0]))
    moved = features.seen(image, "up-left")
    assert torch.equal(moved[..., :4, :4], image[..., 2:, 2:])
    assert torch.equal(features.seen(image, "down-right")[..., 2:, 2:], image[..., :4, :4])


def test_pink_noise_has_the_spectrum_of_pictures() -> None:
    images = data.pink_noise((3, 32, 32), 400)
    assert (images.shape, images.dtype) == ((400, 3, 32, 32), np.uint8)
    power = (np.abs(np.fft.fft2(images[:, 0] / 255)) ** 2).mean(0)
    # Amplitude 1/f: power falls by 16 from frequency 2 to 8 (a little less, where values were cut off).
    assert 8 < power[0, 2] / power[0, 8] < 24
    alike = np.corrcoef(images[:, 0].ravel(), images[:, 1].ravel())[0, 1]
    assert alike == pytest.approx(1 / (1 + 0.4**2), abs=0.05)


@pytest.fixture
def small_images(monkeypatch):
    random = np.random.default_rng(0)

    def parts(name: str, *_):
        def part(n: int) -> data.Part:
            return data.Part(random.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8), np.arange(n) % 10)

        return {"train": part(12), "test": part(5)}

    monkeypatch.setattr(data, "parts", parts)


@pytest.mark.needs("reproductions")
def test_features_are_made_once_and_kept(small_images, tmp_path, monkeypatch) -> None:
    features.prepare("mnist", {"plain", "flip"}, tmp_path, CPU)
    x, y = features.load("mnist", "train", "flip", "groups", tmp_path, CPU)
    assert x.shape == (12, 81, 2, 7, 7)
    assert y.tolist() == [*range(10), 0, 1]
    assert features.load("mnist", "test", "plain", "noise", tmp_path, CPU)[0].shape == (5, 81, 7, 7)
    # Mirroring an image mirrors its low pass, up to where the grid of 28 / 4 places begins.
    raw = [np.load(tmp_path / f"mnist-train-{view}.npy")[:, 0] for view in ("plain", "flip")]
    assert (
        np.corrcoef(raw[0][..., ::-1].ravel(), raw[1].ravel())[0, 1]
        > np.corrcoef(raw[0].ravel(), raw[1].ravel())[0, 1]
    )
    assert len(json.loads((tmp_path / "mnist.json").read_text())["noise"]["mean"]) == 81
    monkeypatch.setattr(features, "scattered", lambda *_: pytest.fail("made twice"))
    features.prepare("mnist", {"plain"}, tmp_path, CPU)


def test_without_kymatio_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kymatio", None)
    monkeypatch.setitem(sys.modules, "kymatio.scattering2d.frontend.torch_frontend", None)
    with pytest.raises(InvalidInput, match=r"privypurse\[reproductions\]"):
        features.scattered(np.zeros((1, 1, 28, 28), np.uint8), "plain", CPU)
