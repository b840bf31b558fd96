"""One cell of a table, once: budgets, plan, training, and what came of it as plain data."""

import itertools
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse._validate import one_of
from privypurse.accounting import accountant_named, gdp
from privypurse.assignment.round_planner import InRounds
from privypurse.errors import InfeasibleBudget, InvalidInput, PrivyPurseWarning
from privypurse.queries import statistics
from privypurse.training.evaluation import losses as cross_entropy
from privypurse.training.without_privacy import train_ordinarily
from reproductions import data, federated
from reproductions.analyses import by_group, correlation_with_loss
from reproductions.averages import Averages
from reproductions.cell import Cell
from reproductions.cell_data import Inputs, inputs_of
from reproductions.grid import QUANTILES
from reproductions.networks import NAMES, ShiftedAndMirrored, is_large, placed
from reproductions.plans import AS_PUBLISHED, epsilon_of, groups_of, method_of
from reproductions.results import Line
from reproductions.score import judged
from reproductions.unsound.drawn_pay import published

_LARGEST_BATCH = {"cpu": 2_000, "cuda": 20_000}


def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
    """Each record's sum over the other classes of how far their score comes within 1 of the right one's, divided by
    the number of classes."""
    return F.multi_margin_loss(outputs, labels, reduction="none")


_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross-entropy": cross_entropy, "hinge": hinge}


def check(cell: Cell) -> None:
    """Raise for what no cell can be made of, before any is trained."""
    one_of(cell.data, "data", data.SHAPES)
    one_of(cell.model, "network", NAMES)
    accountant_named(cell.accountant)
    if cell.federation is None:
        method_of(cell.method, cell.options)
    if cell.method != "none":
        classes = data.classes_of(cell.data)
        given = cell.budgets.get("epsilon") if cell.budgets.get("kind") == "classes" else None
        if isinstance(given, list) and len(given) != classes:
            raise InvalidInput(f"budgets have {len(given)} ε for the {classes} classes of {cell.data}")
        labels = np.repeat(np.arange(classes), 10)
        epsilon_of(cell.budgets, labels, np.random.default_rng(0))


class BrokenOff(Exception):
    """The time is over in the middle of a training; what was done is in its checkpoint."""


@dataclass(frozen=True)
class Until(pp.Callback):
    """Ends a training when the time is over. Its folder holds what was done until then."""

    folder: Path
    ends: float
    """By the clock of `time.monotonic`."""

    def on_step(self, figures: pp.Figures) -> None:
        if time.monotonic() > self.ends and figures.step < figures.steps:
            raise BrokenOff(f"after {figures.step:,} of {figures.steps:,} steps")


def outcome(cell: Cell, seed: int, device: str = "cpu", until: Until | None = None) -> Line:
    """Train once. Seeded, so that it can be repeated: these models are for measuring, not for publishing.

    With ``until`` a training by one plan is broken off when the time is over, and goes on when it is called again.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        where = torch.device(device)
        inputs = inputs_of(cell, seed, where)
        if cell.federation is None:
            return _Training(cell, seed, where, inputs, until).outcome()
        begun = time.perf_counter()
        out = federated.outcome(cell, seed, inputs, where)
        return {**out, "seconds": time.perf_counter() - begun, "made_up": inputs.made_up}


@dataclass(eq=False)
class _Training:
    cell: Cell
    seed: int
    device: torch.device
    inputs: Inputs
    until: Until | None
    course: list[Line] = field(default_factory=list)
    """Scores on the way."""
    before: list[float] = field(default_factory=list)
    """Test accuracy of each new model after public records alone."""

    def outcome(self) -> Line:
        begun = time.perf_counter()
        try:
            plan = self._plan()
        except (InfeasibleBudget, pp.Unsupported) as error:  # a result too: the method cannot do this
            return {"made_up": self.inputs.made_up, "impossible": str(error)}
        planning, begun = time.perf_counter() - begun, time.perf_counter()
        model, steps, spending = self._trained(plan)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        out: Line = {
            "planning_seconds": planning,
            "seconds": time.perf_counter() - begun,
            "steps": steps,
            "parameters": sum(value.numel() for value in model.parameters()),
            "made_up": self.inputs.made_up,
            **self._scores(model),
            "training_accuracy": 100 * float(self._right(model, self.inputs.train).mean()),
        }
        if self.before:
            out["public_accuracy"] = float(np.mean(self.before))
        if self.course:
            out["course"] = [each["accuracy"] for each in self.course]
            out["course_classes"] = [each["classes"] for each in self.course]
        if plan is not None:
            out |= _promises(plan, spending)
        if spending is not None:
            out |= self._spent(model, spending)
        return out

    @property
    def _losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        return _LOSSES[self.cell.training.loss]

    @property
    def _records(self) -> int:
        return len(self.inputs.train)

    @property
    def _batch(self) -> int:
        return self.cell.training.batch(self._records)

    def _plan(self) -> pp.Plan | pp.rounds.Schedule | None:
        cell, training = self.cell, self.cell.training
        if cell.method == "none":
            return None
        epsilon = epsilon_of(cell.budgets, self.inputs.labels, np.random.default_rng([self.seed, 3]))
        budgets, method = pp.Budgets(epsilon, delta=cell.delta), method_of(cell.method, cell.options)
        sizes: dict[str, Any] = {"batch_size": self._batch, "clip_norm": training.clip_norm}
        if isinstance(method, InRounds):
            sizes["epochs"] = training.epochs_for(self._records)
            if cell.as_published and cell.method in AS_PUBLISHED:
                return published(budgets, method, **sizes, rng=np.random.default_rng([self.seed, 4]))  # type: ignore[arg-type]
            return pp.rounds.schedule(budgets, method, **sizes, accountant=cell.accountant)
        plan = pp.plan(
            budgets,
            method,
            **sizes,
            steps=training.steps_for(self._records),
            extra_steps=training.extra_steps,
            stop=self._stop(epsilon),
            accountant=cell.accountant,
        )
        if plan.promise is not pp.Promise.NONE:
            plan.check(budgets)
        return plan

    def _stop(self, epsilon: np.ndarray) -> pp.StopAtPlateau | None:
        asked = self.cell.training.stop
        if asked is None:
            return None
        purse = float(gdp.mu(float(epsilon.min()), self.cell.delta)) ** 2
        noise = math.sqrt(asked["queries"] / (asked["share"] * purse))
        return pp.StopAtPlateau(noise=noise, every=asked["every"], most=asked["queries"], patience=3)

    def _individual(self) -> pp.Individual | None:
        asked = self.cell.training.individual
        if asked is None:
            return None
        every = max(1, round(self._records / self._batch / asked.get("norm_passes_per_epoch", 1)))
        return pp.Individual(every=every, exact=asked.get("clip", True), headroom=asked.get("headroom", 1.0))

    def _new_model(self) -> nn.Module:
        shape = tuple(self.inputs.train.tensors[0].shape[1:])
        model = placed(self.cell.model, shape, self.inputs.classes, self.device)
        if self.inputs.public is not None:
            self._pretrain(model, self.inputs.public)
        return nn.Sequential(ShiftedAndMirrored(), model) if self.cell.training.augmented else model

    def _pretrain(self, model: nn.Module, public: TensorDataset) -> None:
        """Ordinary training on public records, and how good the model is after it."""
        asked = self.cell.training.public
        assert asked is not None
        optimizer = torch.optim.SGD(model.parameters(), lr=asked["learning_rate"], momentum=0.9)
        how = {"steps": asked["steps"], "batch_size": min(asked["batch_size"], len(public))}
        train_ordinarily(model, optimizer, public.tensors, self._losses, **how)
        self.before.append(self._scores(model)["accuracy"])

    def _new_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        training = self.cell.training
        return torch.optim.SGD(model.parameters(), lr=training.learning_rate, momentum=training.momentum)

    def _watch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Judge the model on the way, as often as the cell says."""
        parts, steps = self.cell.training.course, self.cell.training.steps_for(self._records)
        moments = {round(steps * part / parts) for part in range(1, parts + 1)}
        if not moments:
            return
        count = itertools.count(1)

        def look(*_: Any) -> None:
            if next(count) in moments:
                self.course.append(self._scores(model))

        optimizer.register_step_post_hook(look)

    def _physical(self, model: nn.Module) -> int | None:
        largest = _LARGEST_BATCH.get(self.device.type, 2_000)
        if is_large(model):
            largest //= 10
        largest = max(1, largest // self.cell.training.views)
        return None if self._batch + 6 * math.sqrt(self._batch) <= largest else largest

    def _trained(self, plan: pp.Plan | pp.rounds.Schedule | None) -> tuple[nn.Module, int, pp.Spending | None]:
        torch.manual_seed(self.seed)
        records = self.inputs.train
        if isinstance(plan, pp.rounds.Schedule):
            done = pp.rounds.train(self._new_model, self._new_optimizer, records, plan, self._losses, seed=self.seed)
            return done.model, done.steps, None
        model = self._new_model()
        optimizer = self._new_optimizer(model)
        self._watch(model, optimizer)
        if plan is None:
            steps = self.cell.training.steps_for(self._records)
            train_ordinarily(model, optimizer, records.tensors, self._losses, steps=steps, batch_size=self._batch)
            return model, steps, None
        if plan.promise is pp.Promise.NONE:  # seeded and for measuring: nothing of it is published
            plan = replace(plan, promise=pp.Promise.PART)
        execution = pp.Execution(max_physical_batch=self._physical(model))
        how: dict[str, Any] = {"individual": self._individual(), "execution": execution, "seed": self.seed}
        if self.until is not None and not self.cell.training.course:  # a checkpoint does not hold the course
            how |= {"checkpoint": self.until.folder, "callbacks": [self.until]}
        decay = self.cell.training.average
        averages = None if decay is None else Averages(model, [decay])
        how |= {"scheduler": averages, "views": self.cell.training.views}
        trained = pp.train(model, optimizer, records, plan, self._losses, **how)
        if averages is not None and decay is not None:
            averages.put(decay)
        return model, trained.steps, trained.spending

    def _right(self, model: nn.Module, records: TensorDataset) -> np.ndarray:
        """Which records a model is right about."""
        x, y = records.tensors
        return judged(model, x, y, self._losses)[1]

    def _scores(self, model: nn.Module) -> Line:
        right = self._right(model, self.inputs.test)
        labels = self.inputs.test.tensors[1].cpu().numpy()
        by_class = [
            100 * float(right[labels == k].mean()) if (labels == k).any() else None
            for k in range(self.inputs.classes)
        ]
        accuracy = 100 * float(right.mean())
        return {"accuracy": accuracy, "overall": accuracy, "classes": by_class}

    def _spent(self, model: nn.Module, spending: pp.Spending) -> Line:
        """What each record spent, if that was followed (Yu et al. 2023; Feldman & Zrnic 2021, Figure 1)."""
        epsilon, promised = spending.epsilon("pld"), spending.plan.epsilon
        out: Line = {
            "active": [list(point) for point in spending.active],
            "overdrawn": int((epsilon > promised).sum()),
            "epsilon": [float(epsilon.mean()), *np.quantile(epsilon, QUANTILES).tolist()],
        }
        if self.cell.training.individual is not None:
            x, y = self.inputs.train.tensors
            loss, _ = judged(model, x, y, self._losses)
            delta, cap = self.cell.delta, float(promised.max())
            reserve = pp.Filter(np.full(epsilon.size, 0.1), np.full(epsilon.size, delta))
            told = statistics.release(epsilon, reserve, cap=cap, epsilon=0.1, delta=delta, seed=self.seed)
            out |= {
                "released": [told.mean, *np.asarray(told.quantiles).tolist()],
                "loss_correlation": correlation_with_loss(epsilon, loss) if np.ptp(epsilon) > 0 else None,
                "by_class": [[int(g.name), g.mean_epsilon] for g in by_group(epsilon, self.inputs.labels)],
                "histogram": np.histogram(epsilon, bins=50, range=(0.0, cap))[0].tolist(),
                "largest": cap,
                "at_largest": 100 * float((epsilon >= 0.99 * cap).mean()),
            }
        return out


def _promises(plan: pp.Plan | pp.rounds.Schedule, spending: pp.Spending | None) -> Line:
    """What each group was promised and what it spent at most, where extra steps follow of what was followed."""
    spent = plan.spent_by_level()
    if isinstance(plan, pp.rounds.Schedule):
        epsilon = plan.epsilon_by_level
        rounds = [
            {"threshold": r.threshold, "noise_multiplier": r.noise_multiplier, "steps": r.steps, "drawn": r.expected}
            for r in plan.rounds
        ]
        more: Line = {"rounds": rounds}
    else:
        epsilon, more = plan.levels.epsilon, {"noise_multiplier": plan.noise_multiplier}
        if plan.all_steps > plan.steps and spending is not None:
            spent = np.array(spent)
            np.maximum.at(spent, plan.level_of, spending.epsilon("pld"))
    more |= {"promise": plan.promise.value, "accountant": plan.accountant}
    return {**more, **groups_of(epsilon, plan.people_by_level(), spent)}
