"""The benchmark of training: rows as they come, and captured graphs whose tensors outlive the making of them."""

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from benchmarks import individual, training
from torch import Tensor, nn

from privypurse.training.gradients import per_record_norms


def test_each_row_comes_before_the_next_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def alone(work: Any, name: str, batch: int, mode: str, *rest: Any) -> tuple[Any, float]:
        measured.append(mode)
        if mode == "wide sums":
            raise EOFError  # the process died
        return (0.001 * len(measured), 0.002, 0.5), 0.0

    monkeypatch.setattr(training, "alone", alone)
    lines = training.rows("cpu", 1, ["mlp"], [])
    assert next(lines).split()[:3] == ["model", "batch", "how"]
    assert measured == []
    assert next(lines).split() == ["mlp", "512", "plain", "1.0", "1.00", "2.0", "1.00", "0.500", "1.00"]
    assert measured == ["plain"]
    assert next(lines).split()[-6:] == ["2.0", "2.00", "2.0", "1.00", "0.500", "1.00"]
    assert measured == ["plain", "Privy Purse"]
    assert "died" in next(lines)


def test_without_plain_nothing_is_a_multiple_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "alone", lambda *_: ((0.001, 0.002, 0.5), 0.0))
    row = list(training.rows("cpu", 1, ["mlp"], ["plain"]))[1]
    assert row.split() == ["mlp", "512", "Privy", "Purse", "1.0", "2.0", "0.500"]


class Stream:
    """A CUDA stream that only tells whom it waited for."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def wait_stream(self, other: "Stream") -> None:
        self.told.append(f"{self.name} waits for {other.name}")


class Graph:
    def replay(self) -> None:
        pass


def test_a_captured_graph_waits_for_its_data_and_keeps_what_it_reads_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed, a graph reads addresses: what nothing holds any more is somebody else's memory by then."""
    told: list[str] = []
    main = Stream("main", told)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream("side", told))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: nullcontext())
    read: list[weakref.ref[Tensor]] = []

    def made(model: nn.Module, x: Tensor, y: Tensor) -> training.Mode:
        units = torch.arange(3)
        read.append(weakref.ref(units))

        def gradients() -> None:
            told.append(f"computes on {units.numel()}")

        return training.Mode(gradients, lambda: None, lambda: told.append("settles"))

    mode = training.captured(made)(nn.Linear(1, 1), torch.zeros(3), torch.zeros(3))
    gc.collect()
    mode.gradients()
    assert read[0]() is not None
    computes = ["computes on 3"]
    assert told == ["settles", "side waits for main", *(3 * computes), "main waits for side", *computes]


@pytest.mark.needs("cuda")
def test_captured_on_a_gpu_it_computes_on_after_memory_was_used_again() -> None:
    model, x, y = training.case("mlp", 64, "cuda")
    mode = training.captured(training.ours)(model, x, y)
    gc.collect()
    others = [torch.full((64,), 10**9, device="cuda") for _ in range(1000)]  # numbers of nobody, where units may be
    for _ in range(3):
        mode.gradients()
        mode.update()
    torch.cuda.synchronize()
    assert len(others) == 1000
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.needs("cuda"))])
def test_norms_of_watched_records_are_those_of_the_weights_as_they_are_now(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).to(device)
    x, y = torch.randn(6, 3, 8, 8, device=device), torch.arange(6, device=device) % 5
    look = individual.watch(model, x, y)
    found = [look()]
    with torch.no_grad():
        model[0].weight.mul_(3.0)
    found.append(look())
    torch.testing.assert_close(found[1], per_record_norms(model, individual.LOSS, x, y), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(*found, rtol=1e-2)
