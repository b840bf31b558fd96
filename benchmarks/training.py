"""Cost of private gradients: python -m benchmarks.training [--device cuda]

Plain is forward and backward without privacy. Beside it, at the same batch and precision: our clipped sum, and Opacus
by hooks and by ghost clipping. Each runs in a process of its own; time is the median of several steps, memory the
peak above what was there before the steps (on a GPU the allocator's, on a CPU the process's).
"""

from __future__ import annotations

import argparse
import gc
import platform
import resource
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import privypurse as pp
from benchmarks.mnist import TramerBoneh
from benchmarks.plan import alone

Step = Callable[[], Any]
CLIP = 1.0


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
    elif name == "cnn 26k":
        model, x, classes = TramerBoneh(), torch.randn(batch, 1, 28, 28), 10
    else:
        model, x, classes = wide_cnn(), torch.randn(batch, 3, 32, 32), 10
    return model.to(device), x.to(device), torch.randint(0, classes, (batch,)).to(device)


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(x), y))

    return step


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    return lambda: pp.clipped_sum(model, lambda out, y: F.cross_entropy(out, y, reduction="none"), x, y, CLIP)


def opacus_hooks(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from opacus import GradSampleModule

    wrapped = GradSampleModule(model)
    parameters = list(wrapped.parameters())

    def step() -> None:
        wrapped.zero_grad()
        torch.autograd.backward(F.cross_entropy(wrapped(x), y))
        each = [p.grad_sample for p in parameters]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each], dim=1).norm(dim=1)
        factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
        for p, g in zip(parameters, each, strict=True):
            p.grad = torch.einsum("i,i...", factors, g)
            p.grad_sample = None

    return step


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP, use_ghost_clipping=True, loss_reduction="mean"
    )

    def step() -> None:
        wrapped.zero_grad()
        losses = F.cross_entropy(wrapped(x), y, reduction="none")
        torch.autograd.backward(losses.mean(), retain_graph=True)
        factors = wrapped.get_clipping_coef()
        wrapped.zero_grad()
        wrapped.disable_hooks()
        torch.autograd.backward((factors * losses).sum())
        wrapped.enable_hooks()

    return step


MODES = {"plain": plain, "Privy Purse": ours, "Opacus hooks": opacus_hooks, "Opacus ghost": opacus_ghost}
CASES = {
    "cpu": [("mlp", 512), ("cnn 26k", 512), ("cnn 550k", 256), ("transformer", 16)],
    "cuda": [("mlp", 4096), ("cnn 26k", 512), ("cnn 26k", 4096), ("cnn 550k", 4096), ("transformer", 64)],
}


def process_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, batch: int, mode: str, device: str, repeats: int) -> tuple[float, float] | str:
    """Median seconds of a step and peak memory in GB above the start, or why it did not run."""
    warnings.simplefilter("ignore")
    cuda = device == "cuda"
    try:
        step = MODES[mode](*case(name, batch, device))
        gc.collect()
        before = torch.cuda.memory_allocated() if cuda else process_peak()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        times = []
        for k in range(repeats + 2):
            begun = time.perf_counter()
            step()
            if cuda:
                torch.cuda.synchronize()
            if k >= 2:
                times.append(time.perf_counter() - begun)
        peak = (
            torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        return median(times), (peak - before) / 1e9
    except (RuntimeError, MemoryError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"[:60]


def sources(repeats: int = 9) -> list[tuple[str, float, str, float]]:
    """Milliseconds of a draw among a million rates and of 1.86 million normals, beside the ordinary way."""
    import numpy as np

    from privypurse.training.randomness import SecureRandomness
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", nargs="+", help="names of models")
    options = parser.parse_args()
    console = Console(width=110)
    console.print(f"Python {platform.python_version()}, torch {torch.__version__}, {options.device}", highlight=False)
    table = Table("model", "batch", "how", "ms", "x plain", "GB", "x plain")
    for name, batch in CASES[options.device]:
        if options.only and name not in options.only:
            continue
        base: tuple[float, float] | None = None
        for mode in MODES:
            got = alone(measure, name, batch, mode, options.device, options.repeats)[0]
            if isinstance(got, str):
                table.add_row(name, str(batch), mode, got)
                continue
            base = base or got
            ratio = (f"{got[0] / base[0]:.2f}", f"{got[1]:.3f}", f"{got[1] / max(base[1], 1e-9):.2f}")
            table.add_row(name, str(batch), mode, f"{1000 * got[0]:.1f}", *ratio)
        table.add_section()
    console.print(table)
    for what, ours_ms, beside, theirs_ms in alone(sources)[0]:
        console.print(f"{what}: {ours_ms:.2f} ms; {beside}: {theirs_ms:.2f} ms", highlight=False)


if __name__ == "__main__":
    main()
