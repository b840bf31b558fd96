"""Training in rounds (Heo et al. 2023): a schedule draws people into each round, and everybody pays, drawn or not."""

from typing import TYPE_CHECKING

from privypurse._lazy import lazily
from privypurse.assignment.round_planner import schedule
from privypurse.plans.schedule import Schedule

if TYPE_CHECKING:
    from privypurse.training.train_rounds import AveragedOutputs, TrainedInRounds
    from privypurse.training.train_rounds import train_rounds as train

__getattr__, __dir__ = lazily(
    __name__,
    {
        "AveragedOutputs": "privypurse.training.train_rounds",
        "TrainedInRounds": "privypurse.training.train_rounds",
        "train": "privypurse.training.train_rounds:train_rounds",
    },
)

__all__ = ["AveragedOutputs", "Schedule", "TrainedInRounds", "schedule", "train"]
