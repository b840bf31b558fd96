"""Training in rounds (Heo et al. 2023): a schedule draws people into each round, and everybody pays, drawn or not."""

from typing import TYPE_CHECKING

from privypurse._lazy import lazily
from privypurse.assignment.scheduler import schedule
from privypurse.plans.schedule import Schedule

if TYPE_CHECKING:
    from privypurse.training.rounds import AveragedOutputs, TrainedInRounds
    from privypurse.training.rounds import train_rounds as train

__getattr__, __dir__ = lazily(
    __name__,
    {
        "AveragedOutputs": "privypurse.training.rounds",
        "TrainedInRounds": "privypurse.training.rounds",
        "train": "privypurse.training.rounds:train_rounds",
    },
)

__all__ = ["AveragedOutputs", "Schedule", "TrainedInRounds", "schedule", "train"]
