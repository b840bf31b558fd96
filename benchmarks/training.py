"""Cost of private gradients: python -m benchmarks.training [--device cuda]

Plain is forward and backward without privacy. Beside it, at the same batch and in torch's default precision: our
clipped sum, and Opacus by hooks and by ghost clipping; on a GPU also plain and ours as CUDA graphs. Each runs in a
process of its own; time is the median of several steps, first of the gradients alone, then with noise and optimizer
step; memory is the peak of torch's allocator in whole steps, above model and data.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privypurse as pp
from benchmarks.plan import alone
from privypurse.runs.models import TramerBoneh
from privypurse.training.gradients import recorded
from privypurse.training.mechanism import PrivateRun
from privypurse.training.setup import Setup
from reproductions import networks

Step = Callable[[], Any]
CLIP, LEARNING_RATE = 1.0, 1e-3
LOSS = partial(F.cross_entropy, reduction="none")


class Transformer(nn.Module):
    """Four pre-norm blocks, width 256, four heads, over 128 tokens of a vocabulary of 10,000; of known layers."""

    def __init__(self, blocks: int = 4, width: int = 256, vocabulary: int = 10_000) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x).mean(dim=1))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.three, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.three(self.before(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.between(x))))
        return out


class Reader(nn.Module):
    """One recurrent layer of width 128 over 64 places of 128 features, and their mean."""

    def __init__(self, kind: type[nn.RNNBase], width: int = 128) -> None:
        super().__init__()
        self.layer = kind(width, width, batch_first=True)  # type: ignore[arg-type,call-arg]
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0].mean(dim=1))
        return out


def wide_cnn() -> nn.Module:
    """A convolutional network of about 550 thousand parameters for 32 × 32 colour images."""
    layers: list[nn.Module] = []
    channels = [3, 32, 32, 64, 64, 128, 128]
    for k, (before, after) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
        if k % 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


def case(name: str, batch: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    if name == "transformer":
        model: nn.Module = Transformer()
        x, classes = torch.randint(0, 10_000, (batch, 128)), 2
    elif name == "mlp":
        model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        x, classes = torch.randn(batch, 784), 10
    elif name in ("lstm", "gru"):
        model, x, classes = Reader(nn.LSTM if name == "lstm" else nn.GRU), torch.randn(batch, 64, 128), 2
    elif name == "cnn 26k":
        model, x, classes = TramerBoneh(), torch.randn(batch, 1, 28, 28), 10
    elif name in networks.NAMES:
        model = networks.placed(name, (3, 32, 32), 10, torch.device(device))
        x, classes = torch.randn(batch, 3, 32, 32), 10
    else:
        model, x, classes = wide_cnn(), torch.randn(batch, 3, 32, 32), 10
    return model.to(device), x.to(device), torch.randint(0, classes, (batch,)).to(device)


@dataclass(frozen=True)
class Mode:
    """One way to train: a step's gradients, and what follows (noise, where there is any, and the optimizer)."""

    gradients: Step
    update: Step
    settle: Step | None = None
    """What has to be done before the gradients can be captured."""
    reads: Any = None
    """What a captured graph reads by its address alone: it has to live as long as the graph."""


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Mode:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def gradients() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(x), y))

    return Mode(gradients, optimizer.step)


def _run(model: nn.Module, records: int, wide: bool = False) -> tuple[PrivateRun, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    budgets = pp.Budgets(np.full(records, 8.0), delta=1e-5)
    plan = pp.plan(budgets, "uniform", steps=1000, batch_size=records // 2, clip_norm=CLIP, accountant="rdp")
    return PrivateRun(Setup(plan, model, optimizer), wide_sums=wide), optimizer


def ours(model: nn.Module, x: Tensor, y: Tensor, wide: bool = False) -> Mode:
    """What pp.train does in a step, and the ordinary loop too."""
    run, optimizer = _run(model, x.shape[0], wide)
    units = torch.arange(x.shape[0], device=x.device)

    def gradients() -> None:
        optimizer.zero_grad()
        run.clear()
        tape, _ = recorded(run.recorder, LOSS, (x,), y, check=False)
        run.add(tape, units)

    def update() -> None:
        run.release()
        optimizer.step()

    return Mode(gradients, update, run.stay_in_place)


def captured(made: Callable[[nn.Module, Tensor, Tensor], Mode]) -> Callable[[nn.Module, Tensor, Tensor], Mode]:
    """The gradients of a mode as one CUDA graph."""

    def make(model: nn.Module, x: Tensor, y: Tensor) -> Mode:
        mode = made(model, x, y)
        if mode.settle is not None:
            mode.settle()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())  # model, data and sums may still be on their way
        with torch.cuda.stream(side):
            for _ in range(3):
                mode.gradients()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mode.gradients()
        return Mode(graph.replay, mode.update, reads=mode.gradients)

    return make


def with_opacus_layers(model: nn.Module) -> nn.Module:
    """Opacus knows recurrent layers as layers of its own: DPLSTM, DPGRU. And group norm as torch's own."""
    from opacus.validators import ModuleValidator

    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.__class__ = nn.GroupNorm
    return ModuleValidator.fix(model) if isinstance(model, Reader) else model


def opacus_hooks(model: nn.Module, x: Tensor, y: Tensor) -> Mode:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(with_opacus_layers(model))
    inner = torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE)
    optimizer = DPOptimizer(inner, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=x.shape[0])

    def gradients() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(wrapped(x), y))
        optimizer.clip_and_accumulate()

    def update() -> None:
        optimizer.add_noise()
        optimizer.scale_grad()
        inner.step()

    return Mode(gradients, update)


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Mode:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        with_opacus_layers(model), max_grad_norm=CLIP, use_ghost_clipping=True, loss_reduction="mean"
    )
    inner = torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE)
    optimizer = DPOptimizerFastGradientClipping(
        inner, noise_multiplier=1.0, max_grad_norm=CLIP, expected_batch_size=x.shape[0]
    )

    def gradients() -> None:
        optimizer.zero_grad()
        losses = F.cross_entropy(wrapped(x), y, reduction="none")
        torch.autograd.backward(losses.mean(), retain_graph=True)
        factors = wrapped.get_clipping_coef()
        optimizer.zero_grad()
        wrapped.disable_hooks()
        torch.autograd.backward((factors * losses).sum())
        wrapped.enable_hooks()

    def update() -> None:
        optimizer.accumulate()
        optimizer.add_noise()
        optimizer.scale_grad()
        inner.step()

    return Mode(gradients, update)


wide = partial(ours, wide=True)
MODES: dict[str, dict[str, Callable[[nn.Module, Tensor, Tensor], Mode]]] = {
    "cpu": {
        "plain": plain,
        "Privy Purse": ours,
        "wide sums": wide,
        "Opacus hooks": opacus_hooks,
        "Opacus ghost": opacus_ghost,
    },
    "cuda": {
        "plain": plain,
        "Privy Purse": ours,
        "wide sums": wide,
        "Opacus hooks": opacus_hooks,
        "Opacus ghost": opacus_ghost,
        "plain, captured": captured(plain),
        "Privy Purse, captured": captured(ours),
        "wide sums, captured": captured(wide),
    },
}
CASES = {
    "cpu": [
        ("mlp", 512),
        ("cnn 26k", 512),
        ("cnn 550k", 256),
        ("transformer", 16),
        ("lstm", 64),
        ("gru", 64),
        ("resnet-20", 64),
    ],
    "cuda": [
        ("mlp", 4096),
        ("cnn 26k", 512),
        ("cnn 26k", 4096),
        ("cnn 550k", 4096),
        ("transformer", 64),
        ("lstm", 64),
        ("gru", 64),
        ("resnet-20", 1024),
        ("wrn-16-4", 1024),  # Opacus has no rule for its convolutions, whose weights are standardised
        ("wrn-16-4-bfloat16", 1024),
    ],
}


def peak_memory(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What ``work`` gives, and the most that torch's allocator held during it, in GB above what it held before.

    Of the process itself one would measure how generous malloc was today. Scratch space of libraries is not in it on
    a CPU, for anybody.
    """
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = work()
        return result, (torch.cuda.max_memory_allocated() - before) / 1e9
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = work()
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    held = np.cumsum([event.nbytes() for event in events if event.name() == "[memory]"])
    return result, float(held.max(initial=0)) / 1e9


def measure(name: str, batch: int, mode: str, device: str, repeats: int) -> tuple[float, float, float] | str:
    """Median seconds of the gradients and of the whole step, and peak GB above model and data; or why not."""
    warnings.simplefilter("ignore")
    cuda = device == "cuda"
    try:
        inputs = case(name, batch, device)
        gc.collect()

        def prepare() -> Mode:
            made = MODES[device][mode](*inputs)
            for _ in range(2):
                made.gradients()
                made.update()
            return made

        made, peak = peak_memory(prepare, device)

        def timed(*parts: Step) -> float:
            times = []
            for k in range(repeats + 2):
                begun = time.perf_counter()
                for part in parts:
                    part()
                if cuda:
                    torch.cuda.synchronize()
                if k >= 2:
                    times.append(time.perf_counter() - begun)
            return median(times)

        return timed(made.gradients), timed(made.gradients, made.update), peak
    except (RuntimeError, MemoryError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"[:60]


def sources(repeats: int = 9) -> list[tuple[str, float, str, float]]:
    """Milliseconds of a draw among a million rates and of 1.86 million normals, beside the ordinary way."""
    from privypurse.randomness import SecureRandomness
    from privypurse.training.sampling import PoissonSampler

    def milliseconds(work: Step) -> float:
        times = []
        for _ in range(repeats):
            begun = time.perf_counter()
            work()
            times.append(time.perf_counter() - begun)
        return 1000 * median(times)

    source, rates = SecureRandomness(), 10 ** np.random.default_rng(0).uniform(-4, -2.5, 1_000_000)
    sampler, size = PoissonSampler(rates), 1_860_000
    everybody = milliseconds(lambda: np.flatnonzero(source.uniform(rates.size) <= rates))
    ordinary = milliseconds(lambda: torch.randn(size))
    return [
        (
            "a draw of about 890 among a million",
            milliseconds(lambda: sampler.draw(source)),
            "a coin for everybody",
            everybody,
        ),
        ("1.86 million secure normals", milliseconds(lambda: source.normal(size)), "torch.randn", ordinary),
    ]


ROW = "{:<12} {:>6} {:<22} {:>9} {:>8} {:>14} {:>8} {:>8} {:>8}"
COLUMNS = ("model", "batch", "how", "ms", "x plain", "with noise, ms", "x plain", "GB", "x plain")


def line(name: str, batch: int, mode: str, got: tuple[float, ...] | str, base: tuple[float, ...] | None) -> str:
    """One row of the table: the figures, each beside what it is of ``base``, or why there are none."""
    if isinstance(got, str):
        return f"{name:<12} {batch:>6} {mode:<22} {got}"
    figures = (f"{1000 * got[0]:.1f}", f"{1000 * got[1]:.1f}", f"{got[2]:.3f}")
    ratios = ["" if base is None else f"{mine / max(base[k], 1e-9):.2f}" for k, mine in enumerate(got)]
    cells = [cell for pair in zip(figures, ratios, strict=True) for cell in pair]
    return ROW.format(name, batch, mode, *cells)


def rows(device: str, repeats: int, only: list[str] | None, without: list[str]) -> Iterator[str]:
    """The table line by line, each as soon as it is measured."""
    yield ROW.format(*COLUMNS)
    for name, batch in CASES[device]:
        if only and name not in only:
            continue
        base: tuple[float, ...] | None = None
        for mode in MODES[device]:
            if mode in without:
                continue
            try:
                got = alone(measure, name, batch, mode, device, repeats)[0]
            except EOFError:
                got = "the process died; perhaps of too little memory"
            if mode == "plain" and not isinstance(got, str):
                base = got
            yield line(name, batch, mode, got, base)
        yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="+", help="names of models")
    parser.add_argument("--without", nargs="+", default=[], help="names of modes to leave out")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} cores"
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {where}", flush=True)
    for row in rows(options.device, options.repeats, options.only, options.without):
        print(row, flush=True)  # at once, into a file too
    for what, ours_ms, beside, theirs_ms in alone(sources)[0]:
        print(f"{what}: {ours_ms:.2f} ms; {beside}: {theirs_ms:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
