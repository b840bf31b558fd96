"""One cell of a paper's table: what it is trained on, for whom, by which method, and how."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from privypurse._validate import integer, is_real, one_of, real
from privypurse.errors import InvalidInput
from reproductions.networks import NARROWER
from reproductions.plans import PLANNERS
from reproductions.toml_sections import check_keys

_LATER = {"augmented": False, "views": 1, "average": None, "course": 0, "loss": "cross-entropy", "public": None}
LOSSES = ("cross-entropy", "hinge")
FEDERATED = ("personalised", "minimum", "dropout", "none")
"""Liu et al. (2024), §7.2: each at their own ε; all at the smallest; all at the mean, without those who grant less;
no privacy. Minimum and dropout need everybody's ε in one place: they exist in simulations only."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a cell is trained."""

    learning_rate: float
    clip_norm: float
    batch_size: int | str
    """Or "all": full-batch gradient descent."""
    steps: int | None = None
    """In federated training: of a client in each round."""
    epochs: float | None = None
    momentum: float = 0.0
    extra_steps: int = 0
    stop: Mapping[str, Any] | None = None
    """Private accuracy queries that end the extra steps: every, queries, share (of everyone's purse)."""
    individual: Mapping[str, Any] | None = None
    """norm_passes_per_epoch, clip, headroom."""
    augmented: bool = False
    """Whether images are shifted and mirrored anew each time (`networks.ShiftedAndMirrored`)."""
    views: int = 1
    """How often each record goes through the model in a step; the mean of its gradients is clipped."""
    average: float | None = None
    """The decay of the moving average of weights that is judged in the end; None: the last weights."""
    course: int = 0
    """How often the model is judged on the way, at equal distances, the end included."""
    loss: str = LOSSES[0]
    """Or "hinge", that of several classes: torch's `multi_margin_loss`."""
    public: Mapping[str, Any] | None = None
    """Ordinary training on public records first: records (so many of the test file, drawn by the seed, which are not
    tested on), steps, batch_size, learning_rate."""

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInput("[training] needs one of steps and epochs")
        if self.batch_size != "all":
            integer(self.batch_size, "[training] batch_size")
        if self.steps is not None:
            integer(self.steps, "[training] steps")
        integer(self.extra_steps, "[training] extra_steps", least=0)
        if self.epochs is not None:
            real(self.epochs, "[training] epochs", above=0)
        real(self.learning_rate, "[training] learning_rate", above=0)
        real(self.clip_norm, "[training] clip_norm", above=0)
        real(self.momentum, "[training] momentum", least=0, below=1)
        integer(self.views, "[training] views")
        integer(self.course, "[training] course", least=0)
        one_of(self.loss, "[training] loss", LOSSES)
        if self.average is not None:
            real(self.average, "[training] average", least=0, below=1)
        if not isinstance(self.augmented, bool):
            raise InvalidInput(f"[training] augmented is {self.augmented!r}; it must be true or false")
        if self.stop is not None:
            check_keys("[training] stop", self.stop, needed := {"every", "queries", "share"}, needed)
        if self.public is not None:
            counts = ("records", "steps", "batch_size")
            check_keys("[training] public", self.public, needed := {*counts, "learning_rate"}, needed)
            for name in counts:
                integer(self.public[name], f"[training] public {name}")
            real(self.public["learning_rate"], "[training] public learning_rate", above=0)
        if self.individual is not None:
            check_keys("[training] individual", self.individual, {"norm_passes_per_epoch", "clip", "headroom"})

    def batch(self, records: int) -> int:
        return records if self.batch_size == "all" else min(int(self.batch_size), records)

    def steps_for(self, records: int) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(1, round(self.epochs * records / self.batch(records)))

    def epochs_for(self, records: int) -> float:
        return self.epochs if self.epochs is not None else self.steps_for(records) * self.batch(records) / records


@dataclass(frozen=True, kw_only=True)
class Federation:
    """How clients train together."""

    rounds: int
    client_rate: float = 1.0
    reference: float = 1.0
    """The noise is such that a record with this ε would be drawn like everybody in ordinary training."""
    adversary: str = "server"
    split: str = "silos"
    """"silos": as the data set lies; "evenly": ten clients; "shards": ten with few classes each."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Of methods that do better with another one."""

    def __post_init__(self) -> None:
        integer(self.rounds, "[federation] rounds")
        real(self.reference, "[federation] reference", above=0)
        one_of(self.split, "[federation] split", ("silos", "evenly", "shards"))
        check_keys("[federation] learning_rates", self.learning_rates, set(FEDERATED))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell is trained on, for whom, by which method."""

    data: str
    model: str
    method: str
    delta: float
    training: Training
    budgets: Mapping[str, Any]
    options: Mapping[str, Any]
    federation: Federation | None = None
    accountant: str = "pld"
    records: int | None = None
    pixels: Sequence[float] = (0.0, 1.0)
    """Shift and scale of pixels in [0, 1]: public constants."""
    as_published: bool = False
    quick: bool = False

    def __post_init__(self) -> None:
        one_of(self.method, "method", PLANNERS if self.federation is None else FEDERATED)
        for name in ("budgets", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; it must be a table")
        if self.federation is not None and self.training.loss != LOSSES[0]:
            raise InvalidInput(f"clients train by {LOSSES[0]}; [training] loss is {self.training.loss!r}")
        if self.federation is not None and self.training.public is not None:
            raise InvalidInput("clients begin with new models; leave out [training] public")
        if self.method != "none" and "kind" not in self.budgets:
            raise InvalidInput("budgets needs a kind")
        real(self.delta, "delta", above=0, below=1)
        if self.records is not None:
            integer(self.records, "records")
        pair = isinstance(self.pixels, list | tuple) and len(self.pixels) == 2 and all(map(is_real, self.pixels))
        if not pair or self.pixels[1] <= 0:
            raise InvalidInput(f"pixels are {self.pixels!r}; give two numbers, a mean and a positive deviation")

    def plain(self) -> dict[str, Any]:
        """Without what came later, where it is not used: trainings from before keep their names."""
        found = asdict(self)
        found["training"] = {
            name: value for name, value in found["training"].items() if _LATER.get(name, ...) != value
        }
        return found

    @property
    def kind(self) -> str:
        """The same for cells that run the same code, with other numbers."""
        return json.dumps(_numberless(self.quickened().plain()), sort_keys=True)

    def quickened(self) -> Cell:
        """A few steps on a few dozen records: does everything once, and says nothing about accuracy."""
        training = replace(
            self.training,
            steps=3,
            epochs=None,
            batch_size=self.training.batch_size if self.training.batch_size == "all" else 16,
            extra_steps=min(self.training.extra_steps, 6),
            views=min(self.training.views, 2),
            course=min(self.training.course, 3),
            stop=None if self.training.stop is None else {**self.training.stop, "every": 3, "queries": 2},
            public=self.training.public and {**self.training.public, "records": 20, "steps": 2, "batch_size": 8},
        )
        federation = None if self.federation is None else replace(self.federation, rounds=2)
        few = min(self.records or 48, 48)
        made = replace(self, training=training, federation=federation, model=NARROWER.get(self.model, self.model))
        return replace(made, records=few, accountant="rdp", quick=True)


def _numberless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numberless(each) for key, each in value.items()}
    return None if is_real(value) or isinstance(value, list | tuple) else value
