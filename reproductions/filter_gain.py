"""Where does the budget that a filter leaves over matter? `python -m reproductions.filter_gain`.

Full-batch gradient descent of softmax regression with everybody's own filter (Feldman & Zrnic 2021, Algorithm 3): a
step adds noise of deviation s to each weight, and person i takes part as long as their squared contributions sum up
to less than B_i = s²·μ²(ε_i, δ). Plain training is the case in which all T steps are paid for at the full clip norm
c_i, T·c_i² = B_i. A *stretch* of k plans the noise for T/k steps and takes T: noise is √k smaller, and whoever has
large gradients is out before the end. Each stretch chooses its settings by itself from a grid of the same size on
validation records (public data; on people's data that would be charged), and is scored on test records once.

A model is linear, so that gradients of all people under all settings of a grid are two matrix products. Seeded:
these models are for measuring.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby, product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse.accounting.filters import Filter
from privypurse.budgets import preferences
from privypurse.errors import InvalidInput
from reproductions import catalogue, results
from reproductions.choice import Unfinished
from reproductions.data import Part, classes_of, parts, split
from reproductions.headline import told
from reproductions.results import Line

DELTA = 1e-5
PLAIN, ROBUST = "plain", "plain, robust loss"
STRETCHES = {PLAIN: 1.0, "filter 1.25": 1.25, "filter 1.5": 1.5, "filter 2": 2.0, "filter 3": 3.0, ROBUST: 1.0}
"""The rivals, and how many times more steps they take than their noise was planned for."""
EXPONENT = 0.7
"""Of the robust loss: generalised cross-entropy (Zhang & Sabuncu 2018, arXiv 1805.07836), whose gradient is that of
cross-entropy times pᵠ, p the probability of the label."""
CHOICE_SEEDS, SEEDS = (100, 101, 102), 20
WALKS = (0.07, 0.2, 0.6, 1.8, 5.4)
SCALE = 2.5
"""The norm to which images are brought, each by itself."""


@dataclass(frozen=True)
class Case:
    """Data and budgets."""

    title: str
    data: str
    validation: int
    people: int | None = None
    """Drawn for each seed from the training records that are not for choosing; none: all of them."""
    epsilon: tuple[float, ...] = (1.0,)
    shares: tuple[float, ...] = (1.0,)
    tail: float = 1.0
    """The first class has so many times more people than the last, those between fall geometrically."""
    wrong: float = 0.0
    """Share of people with the next class's label; of two classes only the first is mislabelled."""
    balanced: bool = False
    """Whether the score is the mean of the classes' accuracies."""
    steps: tuple[int, ...] = (30, 100)
    clip_norms: tuple[float, ...] = (0.08, 0.25, 0.7, 2.0, 5.6)


CASES = {
    "adult-1000": Case("Adult, 1,000 people, ε 1", "adult", 6561, 1000),
    "heart": Case("Heart Disease, 344 people, ε 1", "heart", 150),
    "levels": Case(
        "Adult, 1,000 people, ε 0.1 / 1 / 5 (70-20-10), Scale",
        "adult",
        6561,
        1000,
        (0.1, 1.0, 5.0),
        (0.7, 0.2, 0.1),
        clip_norms=(0.1, 0.3, 1.0, 3.0, 10.0),
    ),
    "tail": Case(
        "Fashion-MNIST, 500 people, classes 30 : 1, ε 8",
        "fashion-mnist",
        3000,
        500,
        (8.0,),
        tail=30.0,
        balanced=True,
        steps=(100,),
    ),
    "quiet": Case("Fashion-MNIST, 2,000 people, ε 10", "fashion-mnist", 3000, 2000, (10.0,), steps=(100,)),
    "adult-wrong": Case(
        "Adult, 1,000 people, ε 4, 30 % of the lower class mislabelled", "adult", 6561, 1000, (4.0,), wrong=0.3
    ),
    "quiet-wrong": Case(
        "Fashion-MNIST, 2,000 people, ε 10, 40 % mislabelled",
        "fashion-mnist",
        3000,
        2000,
        (10.0,),
        wrong=0.4,
        steps=(100,),
    ),
}


@dataclass(frozen=True)
class Setting:
    """How a model is trained."""

    steps: int
    clip_norm: float
    walk: float
    """How far noise alone moves a weight in the whole run (standard deviation); the step length follows from it."""


@dataclass(frozen=True, eq=False)
class People:
    """Who trains a model."""

    inputs: Tensor
    """With a one in the last place, for the bias."""
    labels: Tensor
    mislabelled: Tensor
    purses: Tensor
    """μ² of everybody's (ε, δ)."""


@dataclass(frozen=True, eq=False)
class Trained:
    """Models that differ by their settings, and what they leave of people's purses."""

    weights: Tensor
    """[features, classes, settings]"""
    spent: Tensor
    """[people, settings]: shares of purses."""
    norms: Tensor
    """[people, settings]: of the gradients that everybody would have in the next step, before clipping."""

    def right(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """[records, settings]"""
        return (inputs @ self.weights.flatten(1)).view(-1, *self.weights.shape[1:]).argmax(1) == labels[:, None]


def grid(case: Case) -> list[Setting]:
    return [Setting(*each) for each in product(case.steps, case.clip_norms, WALKS)]


def descend(people: People, classes: int, settings: Sequence[Setting], method: str, seed: int) -> Trained:
    """Train one model for each setting, all from the same draws of noise."""
    runs = [_descend(people, classes, list(some), method, seed) for _, some in groupby(settings, lambda s: s.steps)]
    weights, spent, norms = zip(*runs, strict=True)
    return Trained(torch.cat(weights, 2), torch.cat(spent, 1), torch.cat(norms, 1))


def _descend(
    people: People, classes: int, settings: Sequence[Setting], method: str, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    x, steps = people.inputs, settings[0].steps
    clip_norms, walks = (torch.tensor([getattr(s, name) for s in settings]) for name in ("clip_norm", "walk"))
    relative = (people.purses / people.purses.max()).sqrt()[:, None]  # Scale: clip norms as √purse
    limits = relative * clip_norms
    noise = (steps / STRETCHES[method] / float(people.purses.max())) ** 0.5 * clip_norms
    total = people.purses[:, None] * noise.square()
    lengths = walks / (noise * steps**0.5)
    truth, sizes = F.one_hot(people.labels, classes).float()[..., None], x.norm(dim=1)[:, None]
    weights, spent = torch.zeros(x.shape[1], classes, len(settings)), torch.zeros(len(x), len(settings))
    random = torch.Generator().manual_seed(seed)

    def residuals() -> Tensor:
        found = torch.softmax((x @ weights.flatten(1)).view(len(x), classes, -1), 1)
        by = (found * truth).sum(1, keepdim=True) ** EXPONENT if method == ROBUST else 1.0
        return (found - truth) * by

    for _ in range(steps):
        residual = residuals()
        norms = residual.norm(dim=1) * sizes
        taken = torch.minimum(torch.minimum(norms, limits), (total - spent).clamp(min=0).sqrt())
        spent += taken.square()
        gradient = (x.T @ (residual * (taken / norms.clamp(min=1e-12))[:, None]).flatten(1)).view_as(weights)
        draw = torch.randn(x.shape[1], classes, 1, generator=random)
        weights -= lengths * (gradient + noise * draw)
    return weights, spent / total, residuals().norm(dim=1) * sizes


@lru_cache(maxsize=1)
def _parts(data: str) -> dict[str, tuple[Tensor, Tensor]]:
    return {name: _tensors(part) for name, part in parts(data).items()}


def _tensors(part: Part) -> tuple[Tensor, Tensor]:
    """Images at half their resolution, each on one norm; everything with a one behind it."""
    inputs = torch.tensor(part.inputs)
    if inputs.ndim == 4:
        inputs = F.avg_pool2d(inputs.float(), 2).flatten(1)
        inputs = SCALE * F.normalize(inputs, dim=1)
    return F.pad(inputs, (0, 1), value=1.0), torch.as_tensor(part.labels.astype(np.int64))


def people_of(case: Case, seed: int) -> People:
    """Those who train a model with this seed."""
    rng, (x, y) = np.random.default_rng([seed, 8]), _parts(case.data)["train"]
    rows = rng.permutation(split(len(y), case.validation)[0])
    number = len(rows) if case.people is None else case.people
    classes = classes_of(case.data)
    if case.tail > 1:
        weights = case.tail ** (-np.arange(classes) / (classes - 1))
        each = np.maximum(1, number * weights / weights.sum()).astype(int)
        given = y.numpy()[rows]
        rows = np.concatenate([rows[given == k][: each[k]] for k in range(classes)])
    taken = torch.as_tensor(rows[:number])
    inputs, labels = x[taken], y[taken]
    wrong = torch.tensor(rng.random(len(taken)) < case.wrong)
    if classes == 2:
        wrong &= labels == 0
    epsilon = preferences.levels(len(taken), case.epsilon, case.shares, rng)
    purses = torch.tensor(Filter(epsilon, np.full(len(taken), DELTA), "gdp").total, dtype=torch.float32)
    return People(inputs, torch.where(wrong, (labels + 1) % classes, labels), wrong, purses)


def _score(case: Case, right: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """In percent, of every setting: what is compared, and the accuracy of each class."""
    by_class = 100 * torch.stack([right[labels == k].float().mean(0) for k in range(classes_of(case.data))])
    return (by_class.mean(0) if case.balanced else 100 * right.float().mean(0)), by_class


def choice_line(name: str, method: str) -> Line:
    """Validation scores of the whole grid, seed after seed."""
    case, begun = CASES[name], time.monotonic()
    x, y = _parts(case.data)["train"]
    held = torch.as_tensor(split(len(y), case.validation)[1])
    inputs, labels = x[held], y[held]
    scores = []
    for seed in CHOICE_SEEDS:
        trained = descend(people_of(case, seed), classes_of(case.data), grid(case), method, seed)
        scores.append(_rounded(_score(case, trained.right(inputs, labels), labels)[0]))
    place = {"purpose": "choice", "row": name, "column": method, "seeds": list(CHOICE_SEEDS)}
    return {**place, "grid": _plain(grid(case)), "scores": scores, **_said(begun)}


def _plain(settings: Iterable[Setting]) -> list[list[float]]:
    return [list(asdict(setting).values()) for setting in settings]


def _rounded(values: Tensor) -> list[float]:
    return [round(each, 3) for each in values.tolist()]


def _said(begun: float) -> Line:
    return {"wall": round(time.monotonic() - begun, 2), "versions": results.versions("cpu")}


def _line(lines: Iterable[Line], purpose: str, name: str, method: str) -> Line | None:
    """The last one of its place."""
    place = (purpose, name, method)
    return next(
        (line for line in reversed(list(lines)) if (line["purpose"], line["row"], line["column"]) == place), None
    )


def chosen(lines: Iterable[Line], name: str, method: str) -> tuple[Setting, float]:
    """The setting with the best mean score on validation records, and that score."""
    line, tried = _line(lines, "choice", name, method), grid(CASES[name])
    if line is None or line["seeds"] != list(CHOICE_SEEDS) or line["grid"] != _plain(tried):
        raise Unfinished(f"the choice for {name} / {method} is not finished; run python -m reproductions.filter_gain")
    scores = np.mean(line["scores"], axis=0)
    best = int(np.argmax(scores))
    return tried[best], float(scores[best])


def final_line(lines: Iterable[Line], name: str, method: str) -> Line:
    """The one function that opens the test set: for what a finished choice chose."""
    setting, _ = chosen(lines, name, method)  # raises where scores are missing
    case, begun = CASES[name], time.monotonic()
    x, y = _parts(case.data)["test"]
    found: dict[str, list[float]] = {}
    classes = torch.zeros(classes_of(case.data))
    for seed in range(SEEDS):
        people = people_of(case, seed)
        trained = descend(people, classes_of(case.data), [setting], method, seed)
        score, by_class = _score(case, trained.right(x, y), y)
        classes += by_class[:, 0] / SEEDS
        for key, value in {"score": float(score), **_purses(people, trained)}.items():
            found.setdefault(key, []).append(round(value, 3))
    place = {
        "purpose": "final",
        "row": name,
        "column": method,
        "setting": asdict(setting),
        "seeds": list(range(SEEDS)),
    }
    return {**place, **found, "mean_of_classes": _rounded(classes), **_said(begun)}


def _purses(people: People, trained: Trained) -> dict[str, float]:
    """Shares in percent: what is spent, who is out, and what those would still have to say."""
    spent, norms = trained.spent[:, 0], trained.norms[:, 0]
    right = trained.right(people.inputs, people.labels)[:, 0]
    out = spent > 0.999

    def share(of: Tensor, among: Tensor) -> float:
        return 100 * float(of[among].float().sum()) / max(float(of.float().sum()), 1e-12)

    return {
        "median_spent": 100 * float(spent.median()),
        "out": 100 * float(out.float().mean()),
        "gradient_of_out": share(norms, out),
        "wrong_among_out": 100 * float((~right[out]).float().mean()) if out.any() else 0.0,
        "wrong_among_others": 100 * float((~right[~out]).float().mean()) if (~out).any() else 0.0,
        "mislabelled_among_out": 100 * float(people.mislabelled[out].float().mean()) if out.any() else 0.0,
    }


def final(lines: Iterable[Line], name: str, method: str) -> Line:
    """Of all seeds; an error where some are missing or were trained with what was not chosen."""
    lines = list(lines)
    line, setting = _line(lines, "final", name, method), asdict(chosen(lines, name, method)[0])
    if line is None or line["seeds"] != list(range(SEEDS)) or line["setting"] != setting:
        raise InvalidInput(f"filter-gain has no result of {name} / {method} for {SEEDS} seeds; run it")
    return line


def _scores(lines: Iterable[Line], name: str, method: str) -> np.ndarray:
    return np.array(final(lines, name, method)["score"])


def gain_table(lines: list[Line], names: Sequence[str]) -> list[str]:
    """Markdown: plain, and the differences to it by the same seeds with 95 % intervals."""
    rivals = [method for method in STRETCHES if method != PLAIN]
    out = [f"| | plain | {' | '.join(rivals)} |", "| --- " * (len(rivals) + 2) + "|"]
    for name in names:
        plain = _scores(lines, name, PLAIN)
        best = max(STRETCHES, key=lambda method: chosen(lines, name, method)[1] if method != ROBUST else -1.0)
        cells = [f"{plain.mean():.2f} ± {plain.std(ddof=1):.2f}"]
        cells += [told(_scores(lines, name, method) - plain) for method in rivals]
        marked = [f"**{cell}**" if method == best else cell for method, cell in zip(STRETCHES, cells, strict=True)]
        out.append(f"| {CASES[name].title} | {' | '.join(marked)} |")
    return out


def purse_table(lines: list[Line], names: Sequence[str], stretch: str = "filter 2") -> list[str]:
    """Markdown: what plain training leaves, and who is out under a filter."""
    out = [
        f"| | median spent, plain | median spent, {stretch} | out | their share of all gradient norms "
        "| wrong among them | wrong among the others | mislabelled among them |",
        "| --- " * 8 + "|",
    ]
    keys = (
        "median_spent",
        "out",
        "gradient_of_out",
        "wrong_among_out",
        "wrong_among_others",
        "mislabelled_among_out",
    )
    for name in names:
        plain = np.mean(final(lines, name, PLAIN)["median_spent"])
        means = [np.mean(final(lines, name, stretch)[key]) for key in keys]
        shown = [f"{each:.0f} %" for each in (plain, *means)]
        shown[-1] = shown[-1] if CASES[name].wrong else "–"
        out.append(f"| {CASES[name].title} | {' | '.join(shown)} |")
    return out


def path_in(folder: Path) -> Path:
    """Beside the files of tables, of which there is one for each in `tables`."""
    return folder / "studies" / "filter-gain.jsonl"


def run(names: Sequence[str], folder: Path) -> None:
    """Whatever is left to choose, then whatever is left to test."""
    path = path_in(folder)
    for name, purpose, method in product(names, ("choice", "final"), STRETCHES):
        lines = results.read(path)
        if _line(lines, purpose, name, method) is None:
            line = choice_line(name, method) if purpose == "choice" else final_line(lines, name, method)
            results.append(path, line)
            print(f"{purpose} {name} / {method}: {line['wall']:.0f} s", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=catalogue.RESULTS, help="folder of studies/filter-gain.jsonl")
    options = parser.parse_args(arguments)
    run(options.cases, options.out)
    lines = results.read(path_in(options.out))
    print(*gain_table(lines, options.cases), "", *purse_table(lines, options.cases), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
