"""One cell of an experiment, once: budgets, plan, training, and what came of it as plain data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from privypurse.accounting import Filter, accountant_named, gdp
from privypurse.arrays import AnyArray, FloatArray
from privypurse.assignment import plan as make_plan
from privypurse.assignment.base import Method
from privypurse.assignment.exclude import Exclude
from privypurse.assignment.rounds import AdaPdp, Groups, InRounds, PdpSgd, Sampling, schedule
from privypurse.assignment.threshold import AdaptiveLoss, FixedLoss, Loss, PrintedLoss
from privypurse.budgets import Budgets
from privypurse.errors import InfeasibleBudget, InvalidInput, PrivyPurseWarning, Unsupported
from privypurse.plans import Plan, Promise
from privypurse.plans.schedule import Schedule
from privypurse.plans.stopping import StopAtPlateau
from privypurse.queries import statistics
from privypurse.training.execution import Execution
from privypurse.training.individual.accounting import Individual
from privypurse.training.individual.spending import Spending, by_group, correlation_with_loss
from privypurse.training.loop import train
from privypurse.training.ordinary import train_ordinarily
from privypurse.training.rounds import train_rounds
from reproductions.grid import Settings
from reproductions.inputs import DATA, Inputs, classes_of, epsilon_of, inputs_of
from reproductions.networks import NAMES, network
from reproductions.unsound.drawn_pay import published
from reproductions.unsound.trusted_curve import TrustedCurve

losses = partial(F.cross_entropy, reduction="none")
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
_LARGEST_BATCH = {"cpu": 2_000, "cuda": 20_000}
_LARGE_MODEL = 100_000  # parameters from which a physical batch is smaller
Outcome = dict[str, Any]


def check(settings: Settings) -> None:
    """Raise for what no cell can be made of, before any is trained."""
    if settings.data not in DATA:
        raise InvalidInput(f"data is {settings.data!r}; choose one of {', '.join(DATA)}")
    if settings.model not in NAMES:
        raise InvalidInput(f"there is no network {settings.model!r}; take one of {', '.join(NAMES)}")
    accountant_named(settings.accountant)
    if settings.method in ROUNDS:
        ROUNDS[settings.method](dict(settings.options))
    elif settings.method == "exclude":
        _method(settings)
    elif settings.options:
        raise InvalidInput(f"method {settings.method} has no options, such as {next(iter(settings.options))!r}")
    if settings.method != "none":
        epsilon_of(settings.budgets, np.repeat(np.arange(classes_of(settings.data)), 10), 0)


def run_cell(settings: Settings, seed: int, device: str = "cpu") -> Outcome:
    """Train once. Seeded, so that it can be repeated: these models are for measuring, not for publishing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        inputs = inputs_of(settings, seed, torch.device(device))
        return _Cell(settings, seed, torch.device(device), inputs).run()


@dataclass(eq=False)
class _Cell:
    settings: Settings
    seed: int
    device: torch.device
    inputs: Inputs

    def run(self) -> Outcome:
        begun = time.perf_counter()
        try:
            made = self._made()
        except (InfeasibleBudget, Unsupported) as error:  # a result too: the method cannot do this
            return {"seed": self.seed, "made_up": self.inputs.made_up, "impossible": str(error)}
        planning = time.perf_counter() - begun
        begun = time.perf_counter()
        model, steps, spending = self._trained(made)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        out: Outcome = {
            "seed": self.seed,
            "planning_seconds": planning,
            "seconds": time.perf_counter() - begun,
            "steps": steps,
            "parameters": sum(value.numel() for value in model.parameters()),
            "made_up": self.inputs.made_up,
            **self._scores(model),
        }
        if made is not None:
            out |= _promises(made)
        if spending is not None:
            out |= self._spent(model, spending)
        return out

    @property
    def _records(self) -> int:
        return len(self.inputs.train)

    @property
    def _batch(self) -> int:
        return self.settings.training.batch(self._records)

    def _made(self) -> Plan | Schedule | None:
        settings, training = self.settings, self.settings.training
        if settings.method == "none":
            return None
        budgets = Budgets(epsilon_of(settings.budgets, self.inputs.labels, self.seed), delta=settings.delta)
        if settings.method in ROUNDS:
            method = ROUNDS[settings.method](dict(settings.options))
            options: dict[str, Any] = {
                "epochs": training.epochs_for(self._records),
                "batch_size": self._batch,
                "clip_norm": training.clip_norm,
            }
            if settings.as_published and not isinstance(method, Groups):
                return published(budgets, method, **options, rng=np.random.default_rng([self.seed, 4]))
            return schedule(budgets, method, **options, accountant=settings.accountant)
        made = make_plan(
            budgets,
            _method(settings),
            steps=training.steps_for(self._records),
            batch_size=self._batch,
            clip_norm=training.clip_norm,
            extra_steps=training.extra_steps,
            stop=self._stop(budgets.epsilon),
            accountant=settings.accountant,
        )
        if settings.method != "curve-fit-as-published":
            made.check(budgets)
        return made

    def _stop(self, epsilon: FloatArray) -> StopAtPlateau | None:
        asked = self.settings.training.stop
        if asked is None:
            return None
        purse = float(gdp.mu(float(epsilon.min()), self.settings.delta)) ** 2
        noise = math.sqrt(asked["queries"] / (asked["share"] * purse))
        return StopAtPlateau(noise=noise, every=asked["every"], most=asked["queries"], patience=3)

    def _individual(self) -> Individual | None:
        asked = self.settings.training.individual
        if asked is None:
            return None
        every = max(1, round(self._records / self._batch / asked.get("looks_per_epoch", 1)))
        return Individual(every=every, clip=asked.get("clip", True), headroom=asked.get("headroom", 1.0))

    def _new_model(self) -> nn.Module:
        return network(self.settings.model, self.inputs.shape, self.inputs.classes).to(self.device)

    def _new_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        training = self.settings.training
        return torch.optim.SGD(model.parameters(), lr=training.learning_rate, momentum=training.momentum)

    def _physical(self, model: nn.Module) -> int | None:
        largest = _LARGEST_BATCH.get(self.device.type, 2_000)
        if sum(value.numel() for value in model.parameters()) > _LARGE_MODEL:
            largest //= 10
        return None if self._batch + 6 * math.sqrt(self._batch) <= largest else largest

    def _trained(self, made: Plan | Schedule | None) -> tuple[nn.Module, int, Spending | None]:
        torch.manual_seed(self.seed)
        if isinstance(made, Schedule):
            done = train_rounds(self._new_model, self._new_optimizer, self.inputs.train, made, losses, seed=self.seed)
            return done.model, done.steps, None
        model = self._new_model()
        optimizer = self._new_optimizer(model)
        if made is None:
            steps = self.settings.training.steps_for(self._records)
            train_ordinarily(model, optimizer, self.inputs.train.tensors, losses, steps=steps, batch_size=self._batch)
            return model, steps, None
        if made.promise is Promise.NONE:  # seeded and for measuring: nothing of it is published
            made = replace(made, promise=Promise.PART)
        trained = train(
            model,
            optimizer,
            self.inputs.train,
            made,
            losses,
            individual=self._individual(),
            execution=Execution(max_physical_batch=self._physical(model)),
            seed=self.seed,
        )
        return model, trained.steps, trained.spending

    def _scores(self, model: nn.Module) -> Outcome:
        _, right = _judged(model, self.inputs.test.tensors)
        labels = self.inputs.test.tensors[1].cpu().numpy()
        by_class = [
            100 * float(right[labels == k].mean()) if (labels == k).any() else None
            for k in range(self.inputs.classes)
        ]
        accuracy = 100 * float(right.mean())
        return {"accuracy": accuracy, "overall": accuracy, "classes": by_class}

    def _spent(self, model: nn.Module, spending: Spending) -> Outcome:
        """What each record spent, if that was followed (Yu et al. 2023; Feldman & Zrnic 2021, Figure 1)."""
        epsilon = spending.epsilon("pld")
        promised = spending.plan.epsilon
        out: Outcome = {
            "active": [list(point) for point in spending.active],
            "overdrawn": int((epsilon > promised).sum()),
            "epsilon": _distribution(epsilon),
        }
        if self.settings.training.individual is not None:
            loss, _ = _judged(model, self.inputs.train.tensors)
            reserve = Filter(np.full(epsilon.size, 0.1), np.full(epsilon.size, self.settings.delta))
            cap = float(promised.max())
            told = statistics.release(
                epsilon, reserve, cap=cap, epsilon=0.1, delta=self.settings.delta, seed=self.seed
            )
            out |= {
                "released": [told.mean, *np.asarray(told.quantiles).tolist()],
                "loss_correlation": correlation_with_loss(epsilon, loss) if np.ptp(epsilon) > 0 else None,
                "by_class": [[int(g.name), g.mean_epsilon] for g in by_group(epsilon, self.inputs.labels)],
                "histogram": np.histogram(epsilon, bins=50, range=(0.0, cap))[0].tolist(),
                "largest": cap,
            }
        return out


def _distribution(epsilon: FloatArray) -> list[float]:
    return [float(epsilon.mean()), *np.quantile(epsilon, QUANTILES).tolist()]


def _promises(made: Plan | Schedule) -> Outcome:
    """What each group was promised and what it spent at most; of plans with many levels a few."""
    if isinstance(made, Schedule):
        epsilon, people = made.epsilon, made.people_by_level()
        extra: Outcome = {
            "rounds": [
                {
                    "threshold": r.threshold,
                    "noise_multiplier": r.noise_multiplier,
                    "steps": r.steps,
                    "drawn": r.expected,
                }
                for r in made.rounds
            ]
        }
    else:
        epsilon = made.levels.epsilon
        people = np.bincount(made.level_of, minlength=epsilon.size)
        extra = {"noise_multiplier": made.noise_multiplier}
    spent = made.spent_by_level()
    some = np.unique(np.linspace(0, epsilon.size - 1, min(epsilon.size, 20)).round().astype(int))
    return {
        **extra,
        "promise": made.promise.value,
        "accountant": made.accountant,
        "groups": [
            {"epsilon": float(epsilon[k]), "people": int(people[k]), "spent": float(spent[k])} for k in some.tolist()
        ],
        "overspent": int(people[spent > epsilon].sum()),
    }


def _judged(model: nn.Module, tensors: tuple[torch.Tensor, ...]) -> tuple[AnyArray, AnyArray]:
    """Each record's loss, and whether the model is right about it."""
    was_training = model.training
    model.eval()
    loss, right = [], []
    with torch.no_grad():
        for x, y in zip(*(torch.split(tensor, 2048) for tensor in tensors), strict=True):
            output = model(x)
            loss.append(losses(output, y))
            right.append(output.argmax(1) == y)
    model.train(was_training)
    return torch.cat(loss).cpu().numpy(), torch.cat(right).cpu().numpy()


def _method(settings: Settings) -> str | Method:
    if settings.method == TrustedCurve.name:
        return TrustedCurve()
    if settings.method != "exclude":
        return settings.method
    if unknown := settings.options.keys() - {"threshold"}:
        raise InvalidInput(f"method exclude has no option {min(unknown)!r}; it has threshold")
    threshold = settings.options.get("threshold", "mean")
    if threshold != "mean" and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise InvalidInput(f'options.threshold is {threshold!r}; give a number or "mean"')
    return Exclude(None if threshold == "mean" else float(threshold))


def _loss(options: dict[str, Any], usual: str) -> Loss:
    name = options.pop("loss", usual)
    weights = options.pop("weights", (0.7, 0.3))
    losses: dict[str, Callable[[], Loss]] = {
        "adaptive": AdaptiveLoss,
        "fixed": lambda: _fixed(weights),
        "printed": PrintedLoss,
    }
    if name not in losses:
        raise InvalidInput(f"options.loss is {name!r}; choose one of {', '.join(losses)}")
    return losses[name]()


def _fixed(weights: Any) -> FixedLoss:
    try:
        first, second = map(float, weights)
    except (TypeError, ValueError):
        raise InvalidInput(f"options.weights are {weights!r}; give two numbers") from None
    return FixedLoss(first, second)


def _groups(options: dict[str, Any]) -> Groups:
    if unknown := options.keys() - {"order"}:
        raise InvalidInput(f"method groups has no option {min(unknown)!r}; it has order")
    return Groups(**options)


def _rounds(kind: type[PdpSgd] | type[AdaPdp] | type[Sampling], usual: str) -> Callable[[dict[str, Any]], InRounds]:
    def made(options: dict[str, Any]) -> InRounds:
        loss = _loss(options, usual)
        fine = {"rounds"} if kind is not Sampling else set()
        if unknown := options.keys() - fine:
            known = ", ".join(sorted({"loss", "weights"} | fine))
            raise InvalidInput(f"method {kind.name} has no option {min(unknown)!r}; it has {known}")
        return kind(loss, **options)

    return made


ROUNDS: dict[str, Callable[[dict[str, Any]], InRounds]] = {
    "pdp-sgd": _rounds(PdpSgd, "adaptive"),
    "adapdp": _rounds(AdaPdp, "fixed"),
    "sampling": _rounds(Sampling, "fixed"),
    "groups": _groups,
}
