"""What is audited: a plan, the network and loss that it trains, and made-up records in nobody's place.

An audit trains anew. By default nobody's data goes in: records are drawn from the public ranges and categories of the
run's encoder, so that nothing is spent and nothing that is found is about anybody. Where the people themselves are
asked for (`Members`), made-up records still stand in wherever time is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn

from privypurse._validate import integer
from privypurse.arrays import AnyArray, IntArray
from privypurse.audit.canaries import Loss
from privypurse.audit.members import Members, members_of
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Encoding, Features, Flag, Range
from privypurse.datasets.targets import Classes, Flags, Number, Target
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.plans import file as planfile
from privypurse.runs.config import Optimizer, RunConfig, parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.models import mlp, model_of, optimizer_of
from privypurse.runs.objectives import losses_of
from privypurse.runs.predictor import Predictor, predictor_of

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

OTHERS = 2000
"""Made-up people beside those whom an attack is about."""
_STAND_IN = 20  # features of the records that stand in where a plan has no data beside it


@dataclass(frozen=True, eq=False)
class Subject:
    """A training that can be done anew, as often as an attack asks."""

    plan: Plan
    level_of: IntArray
    """The level of each made-up record; one record each."""
    inputs: Tensor
    labels: Tensor
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss_fn: Loss
    target: Target
    words: tuple[str, ...] = ()
    """What is made up, and what is not."""
    members: Members | None = None
    """The people of the run, to be trained on in place of made-up records; None: nobody's data is read."""

    @property
    def data(self) -> Literal["made up", "members"]:
        return "made up" if self.members is None else "members"

    def on(self, device: torch.device) -> Subject:
        """The same, with its records there."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))


def subject_of(path: str | Path, *, others: int = OTHERS, trust_code: bool = False) -> Subject:
    """Of the folder of a run, with its own network, or of a plan's file, with a small network that stands in."""
    place = Path(path)
    integer(others, "others")
    if not place.is_dir():
        return stand_in(_plan_in(place), others)
    return _of_run(*_opened(place, trust_code), others)


def _plan_in(place: Path) -> Plan:
    mend = "name a plan's file, such as privypurse plan writes, or the folder of a run"
    if not place.exists():
        raise InvalidInput(f"{place} does not exist; {mend}")
    try:
        return planfile.load(place, Plan)
    except InvalidInput as error:
        raise InvalidInput(f"{error}; {mend}") from None


def subject_on_members(path: str | Path, *, ledger: Ledger | None = None, trust_code: bool = False) -> Subject:
    """Of the folder of a run, on its people, whom each training costs what the plan claims once more.

    ``ledger`` is the one that the plan was made with: it charges them, and whoever cannot pay takes no part.
    """
    place = Path(path)
    plan, config, run = _opened(place, trust_code)
    members = members_of(place, config, run, ledger)
    return replace(_of_run(plan, config, run, plan.people), members=members, words=tuple(members.words))


def config_of(path: str | Path) -> RunConfig:
    """The configuration that the run in this folder was made by."""
    place = Path(path)
    if not place.is_dir():
        raise InvalidInput(f"{place} is no folder: a plan has nobody's records beside it; name the folder of a run")
    return _config(RunFolder.open(place))


def _config(folder: RunFolder) -> RunConfig:
    for name in ("plan.json", "config.toml"):
        if name not in folder.files:
            raise InvalidInput(
                f"{folder.path} holds no {name}: an audit trains anew, by the run's plan and configuration, which "
                "are internal files; name the whole folder of a run of `privypurse train`"
            )
    return parse_config((folder.path / "config.toml").read_text(encoding="utf-8"))


def _opened(place: Path, trust_code: bool) -> tuple[Plan, RunConfig, Predictor]:
    folder = RunFolder.open(place)
    config = _config(folder)
    return planfile.load(place / "plan.json", Plan), config, predictor_of(folder, trust_code=trust_code)


def _of_run(plan: Plan, config: RunConfig, run: Predictor, others: int) -> Subject:
    level_of = some_levels(plan, others)
    rng = np.random.default_rng()
    if run.encoder is None:
        inputs = rng.random((level_of.size, *run.shape), dtype=np.float32)
    else:
        inputs = made_up_features(run.encoder, level_of.size, rng)
    where = "pixels at random" if run.encoder is None else "the public ranges and categories of its encoder"
    return Subject(
        plan=plan,
        level_of=level_of,
        inputs=torch.as_tensor(inputs),
        labels=torch.as_tensor(made_up_targets(run.target, level_of.size, rng)),
        model=partial(model_of, config.model, run.shape, run.outputs),
        optimizer=partial(optimizer_of, config.optimizer),
        loss_fn=losses_of(run.target),
        words=(f"The run's network is trained anew, on made-up records from {where}.",),
        target=run.target,
    )


def stand_in(plan: Plan, others: int = OTHERS) -> Subject:
    """Of a plan alone: a network of one hidden layer, and two classes of random points."""
    level_of = some_levels(plan, others)
    rng = np.random.default_rng()
    inputs = rng.uniform(-1, 1, (level_of.size, _STAND_IN)).astype(np.float32)
    target = Classes("made up", ("no", "yes"))
    return Subject(
        plan=plan,
        level_of=level_of,
        inputs=torch.as_tensor(inputs),
        labels=torch.as_tensor((inputs[:, 0] > 0).astype(np.int64)),
        model=partial(mlp, (_STAND_IN,), 2),
        optimizer=partial(optimizer_of, Optimizer("SGD", {"lr": 0.1})),
        loss_fn=losses_of(target),
        words=(
            f"A plan has no network beside it: a small one stands in, on made-up records of {_STAND_IN} numbers.",
        ),
        target=target,
    )


def some_levels(plan: Plan, others: int) -> IntArray:
    """The levels of so many people of the plan, in its proportions; all of them where there are no more."""
    levels = np.sort(plan.level_of).astype(np.int64)
    if levels.size <= others:
        return levels
    return levels[np.linspace(0, levels.size - 1, others).round().astype(np.int64)]


def made_up_features(encoder: Encoder, records: int, rng: np.random.Generator) -> Features:
    """Rows that the encoder could have made: each number anywhere on its scale, each category as likely as others."""
    parts = [_column(how, records, rng) for how in encoder.columns.values()]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _column(how: Encoding, records: int, rng: np.random.Generator) -> AnyArray:
    if isinstance(how, Categories):
        width = len(how.names(""))
        return np.eye(width)[rng.integers(len(how.values), size=records)]
    if isinstance(how, Flag):
        values = rng.integers(2, size=records).astype(np.float64)
    else:
        values = rng.uniform(0.0 if isinstance(how, Range) and how.log else -1.0, 1.0, records)
    return np.stack([values, *([np.zeros(records)] if how.indicator else [])], axis=1)


def made_up_targets(target: Target, records: int, rng: np.random.Generator) -> AnyArray:
    """Targets as the target itself encodes them."""
    if isinstance(target, Classes):
        return rng.integers(target.outputs, size=records)
    if isinstance(target, Number):
        return rng.uniform(0.0 if target.range.log else -1.0, 1.0, (records, 1)).astype(np.float32)
    assert isinstance(target, Flags)
    return rng.integers(2, size=(records, target.outputs)).astype(np.float32)
