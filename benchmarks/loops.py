"""Whole loops beside plain ones on a GPU: python -m benchmarks.loops [--row NAME] [--bars]

A row is a model and a batch: the ordinary PyTorch loop with the loader, model and optimizer of `make_private`, and
`pp.train`, which captures its steps, beside the same loop without privacy, over data that lies on the GPU. Each row
runs in a process of its own, at torch's default precision. Time is that of whole steps (draw, forward, backward,
noise, optimizer), the median over runs of ten; memory the peak of torch's allocator with the model, checks before the
first step included, beside that of plain's batch. Poisson sampling makes larger ones, too: the last column compares
the ordinary loop with the plain one at the largest batch that it met. Opacus (ghost clipping) is there for what it
takes. ``--bars`` exits with 1 above a bar.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
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
from torch.utils.data import TensorDataset

import privypurse as pp
from benchmarks.plan import alone
from benchmarks.training import LEARNING_RATE, case

WARM_UP, TEN = 60, 10


@dataclass(frozen=True)
class Row:
    """A model and a batch, and the bars: time and memory of the ordinary loop, time of captured steps."""

    model: str
    batch: int
    steps: int
    loop: float
    memory: float | None = None
    captured: float | None = None


ROWS = {
    "mlp-4096": Row("mlp", 4096, 200, loop=1.5, captured=1.06),
    "cnn-26k-512": Row("cnn 26k", 512, 200, loop=1.5, captured=0.37),
    "cnn-26k-4096": Row("cnn 26k", 4096, 200, loop=1.5, captured=0.85),
    "cnn-550k-4096": Row("cnn 550k", 4096, 60, loop=1.2, captured=1.15),
    "transformer-64": Row("transformer", 64, 100, loop=1.5, captured=1.1),
    "gpt2-16x128": Row("gpt2", 16, 60, loop=1.25, memory=1.3),
    "bert-32x128": Row("bert", 32, 60, loop=1.3, memory=1.3),
    "lora-8x512": Row("lora", 8, 30, loop=1.25, memory=1.2),
}
"""Bars of captured steps are those of the table before this one, times 1.05, or what was asked for."""

Loss = Callable[[Any, Tensor], Tensor]
Mark = Callable[[], None]
"""Called after every step."""


def made(row: Row) -> tuple[nn.Module, Tensor, Tensor, Loss]:
    """The model, inputs and labels of four batches, and its loss for each record."""
    if row.model not in ("gpt2", "bert", "lora"):
        model, x, y = case(row.model, 4 * row.batch, "cuda")
        return model, x, y, lambda output, label: F.cross_entropy(output, label, reduction="none")
    import transformers as installed

    transformers: Any = installed
    torch.manual_seed(0)
    if row.model == "bert":
        bert = transformers.BertForSequenceClassification(transformers.BertConfig())
        words = torch.randint(0, 30_000, (4 * row.batch, 128), device="cuda")
        classes = torch.randint(0, 2, (4 * row.batch,), device="cuda")
        return bert.cuda(), words, classes, pp.losses.sequence_classification
    if row.model == "gpt2":
        words = torch.randint(0, 50_000, (4 * row.batch, 128), device="cuda")
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config())
        return gpt2.cuda(), words, words, pp.losses.causal_language_model
    import peft

    shape: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    with torch.device("cuda"):
        config = transformers.LlamaConfig(**shape, num_attention_heads=32, num_key_value_heads=4)
        llama = transformers.LlamaForCausalLM(config)
    adapted: Any = peft.get_peft_model(
        llama.to(torch.bfloat16), peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"])
    )
    words = torch.randint(0, 32_000, (4 * row.batch, 512), device="cuda")
    return adapted.cuda(), words, words, pp.losses.causal_language_model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=LEARNING_RATE)


def plan_of(row: Row, records: int) -> pp.Plan:
    budgets = pp.Budgets(np.full(records, 8.0), delta=1e-5)
    steps = row.steps + WARM_UP
    return pp.plan(budgets, "uniform", steps=steps, batch_size=row.batch, clip_norm=1.0, accountant="rdp")


def plain(row: Row, mark: Mark, batch: int | None = None, steps: int | None = None) -> None:
    model, x, y, loss = made(row)
    optimizer = optimizer_of(model)
    for _ in range(row.steps + WARM_UP if steps is None else steps):
        drawn = torch.randperm(x.shape[0], device="cuda")[: batch or row.batch]
        optimizer.zero_grad()
        torch.autograd.backward(loss(model(x[drawn]), y[drawn]).mean())
        optimizer.step()
        mark()


def ordinary(row: Row, mark: Mark) -> int:
    """Gives the records of its largest batch."""
    largest = 0
    model, x, y, loss = made(row)
    private, optimizer, loader = pp.make_private(
        model, optimizer_of(model), TensorDataset(x, y), plan_of(row, x.shape[0])
    )
    for batch, label in loader:
        optimizer.zero_grad()
        optimizer.backward(loss(private(batch), label))
        optimizer.step()
        mark()
        largest = max(largest, label.shape[0])
    return largest


def captured(row: Row, mark: Mark) -> None:
    model, x, y, loss = made(row)

    class Scheduler:
        """What `pp.train` calls after every step."""

        def step(self) -> None:
            mark()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    data, plan, execution = TensorDataset(x, y), plan_of(row, x.shape[0]), pp.Execution(capture=True)
    pp.train(model, optimizer_of(model), data, plan, loss, scheduler=Scheduler(), execution=execution)


def opacus(row: Row, mark: Mark) -> None:
    from opacus import PrivacyEngine

    model, x, y, _ = made(row)
    engine = PrivacyEngine()
    loader = torch.utils.data.DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=row.batch)
    model, optimizer, criterion, _ = engine.make_private(
        module=model,
        optimizer=optimizer_of(model),
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
        poisson_sampling=False,
    )
    for _ in range(row.steps + WARM_UP):
        drawn = torch.randperm(x.shape[0], device="cuda")[: row.batch]
        optimizer.zero_grad()
        criterion(model(x[drawn]), y[drawn]).backward()
        optimizer.step()
        mark()


LOOPS: dict[str, Callable[[Row, Mark], int | None]] = {
    "plain": plain,
    "ordinary loop": ordinary,
    "pp.train": captured,
    "Opacus ghost": opacus,
}


@dataclass(frozen=True)
class Measured:
    """What a loop took."""

    seconds: float
    """Of a step."""
    memory: float
    """The peak of GB since it began."""
    same_batch: float | None = None
    """That of the plain loop at the largest batch it met."""


def measured(name: str, without: list[str]) -> dict[str, Measured | str]:
    """What each loop took; or why not."""
    warnings.simplefilter("ignore")
    row, found = ROWS[name], dict[str, Measured | str]()
    for how, loop in LOOPS.items():
        if how in without or (how == "pp.train" and row.captured is None):
            continue
        clock = Clock()
        try:
            memory, largest = peak(partial(loop, row, clock.mark))
            same = None if largest is None else peak(partial(plain, row, _nothing, largest, steps=5))[0]
            found[how] = Measured(clock.step, memory, same)
        except Exception as error:
            found[how] = f"{type(error).__name__}: {error}"[:90]
    return found


def peak(run: Callable[[], int | None]) -> tuple[float, int | None]:
    """The most GB that it held at once, beyond what was held before, and what it gives."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    given = run()
    return (torch.cuda.max_memory_allocated() - before) / 1e9, given


def _nothing() -> None: ...


class Clock:
    """Seconds of a step: the median over runs of ten, after some to warm up, each waited for to its end."""

    def __init__(self) -> None:
        self._taken, self._times = 0, [0.0]

    def mark(self) -> None:
        self._taken += 1
        if self._taken >= WARM_UP and self._taken % TEN == 0:
            torch.cuda.synchronize()
            self._times.append(time.perf_counter())

    @property
    def step(self) -> float:
        return median(after - before for before, after in pairwise(self._times[1:])) / TEN


LINE = "{:<15} {:<14} {:>9} {:>8} {:>8} {:>8} {:>8}  {}"


def lines(name: str, without: list[str]) -> Iterator[tuple[str, bool]]:
    """The row's lines, and whether each keeps its bar."""
    row, base = ROWS[name], None
    for how, got in alone(measured, name, without)[0].items():
        if isinstance(got, str):
            yield f"{name:<15} {how:<14} {got}", how == "Opacus ghost"
            continue
        base = base or got
        time_ratio, memory_ratio = got.seconds / base.seconds, got.memory / base.memory
        same_batch = None if got.same_batch is None else got.memory / got.same_batch
        bars = {"ordinary loop": (row.loop, row.memory), "pp.train": (row.captured, None)}.get(how, (None, None))
        kept = all(bar is None or of <= bar for of, bar in zip((time_ratio, memory_ratio), bars, strict=True))
        said = " / ".join(f"{bar}" for bar in bars if bar is not None)
        said = said and f"bar {said}{'' if kept else ': above'}"
        figures = f"{1000 * got.seconds:.2f}", f"{time_ratio:.2f}", f"{got.memory:.2f}", f"{memory_ratio:.2f}"
        yield LINE.format(name, how, *figures, "" if same_batch is None else f"{same_batch:.2f}", said), kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=list(ROWS), default=list(ROWS), help="default: all")
    parser.add_argument("--without", nargs="+", choices=list(LOOPS)[1:], default=[], help="loops to leave out")
    parser.add_argument("--bars", action="store_true", help="exit with 1 where a ratio is above its bar")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU; python -m benchmarks.training measures gradients on a CPU")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(LINE.format("row", "how", "ms", "x plain", "GB", "x plain", "x same", ""), flush=True)
    kept = True
    for name in options.row:
        for line, fits in lines(name, options.without):
            print(line, flush=True)
            kept &= fits
    return 0 if kept or not options.bars else 1


if __name__ == "__main__":
    sys.exit(main())
