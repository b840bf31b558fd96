"""What a call of ``train`` did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from privypurse import _notebooks
from privypurse.training.callbacks import Figures
from privypurse.training.individual.spending import Spending


@dataclass(frozen=True)
class Trained:
    """What a call of ``train`` did."""

    steps: int
    """Steps of the plan that are taken now, those of earlier calls included."""
    resumed_from: int
    """How many were taken before this call."""
    seconds: float
    how: str
    """The path that was taken: "captured" (a CUDA graph on data that stays on the device) or "eager"."""
    spending: Spending | None = None
    """What each person spent, with individual accounting. Sensitive."""
    left_out: int = 0
    """How often somebody was drawn and contributed nothing, since their gradient was not finite. Internal."""
    run_id: str | None = None
    """The run's name in its ledger."""
    history: tuple[Figures, ...] = ()
    """Step by step, as often as it was validated, or ten times: learning rate, public ε, what validation found."""

    def _repr_html_(self) -> str:
        """In a notebook: what may be told, and below it what is internal.

        Durations, who contributed nothing, and figures of people who were not charged are internal (rule 6).
        """
        resumed = f"{self.resumed_from:,} of them before this call" if self.resumed_from else ""
        run = "" if self.run_id is None else f"run {self.run_id} of its ledger"
        public = tuple(figures.public for figures in self.history)
        left = f"{self.left_out:,} times somebody was drawn and contributed nothing" if self.left_out else ""
        return _notebooks.shown(
            f"Trained: {self.steps:,} steps ({self.how})",
            _notebooks.lines((resumed, run, *_throughout(public))),
            _course(public, "as it may be told"),
            _notebooks.shown(
                "Of the people in training and in tests",
                _notebooks.lines((f"{self.seconds:.1f} seconds", left)),
                _course(
                    self.history if public != self.history else (), "with figures of people who were not charged"
                ),
                "" if self.spending is None else self.spending._repr_html_(),
                internal=True,
            ),
        )


def _throughout(history: tuple[Figures, ...]) -> Iterator[str]:
    """What was the same all the time, said once."""
    rates, caps = ({getattr(figures, name) for figures in history} for name in ("learning_rate", "epsilon"))
    if len(rates) == 1:
        yield f"learning rate {rates.pop():.4g} throughout"
    if len(caps) == 1 and (cap := caps.pop()) is not None:
        yield f"nobody's ε is above {cap:g}, all steps together"


def _course(history: tuple[Figures, ...], caption: str) -> str:
    """What changed step by step: learning rate, public cap, and what validation found."""
    names = list(dict.fromkeys(name for figures in history for name in figures.validation))
    rates, caps = ({getattr(figures, name) for figures in history} for name in ("learning_rate", "epsilon"))
    columns = {
        **({"learning rate": [f"{figures.learning_rate:.4g}" for figures in history]} if len(rates) > 1 else {}),
        **({"ε at most": [_number(figures.epsilon) for figures in history]} if len(caps) > 1 else {}),
        **{name: [_number(figures.validation.get(name), ".4g") for figures in history] for name in names},
    }
    if not columns:
        return ""
    steps = [f"{figures.step:,}" for figures in history]
    return _notebooks.table(("step", *columns), list(zip(steps, *columns.values(), strict=True)), caption)


def _number(value: float | None, shown: str = "g") -> str:
    return "" if value is None else format(value, shown)
