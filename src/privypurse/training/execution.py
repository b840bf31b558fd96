"""How a run is carried out: the options that cannot change its guarantee."""

from __future__ import annotations

from dataclasses import dataclass

from privypurse._validate import integer
from privypurse.accounting import Progress
from privypurse.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Memory, processes, speed and what is shown. Whatever they are, what is released is distributed alike."""

    max_physical_batch: int | None = None
    """Most records that go through the model at once. Larger draws are cut into several; their sum is the same."""
    num_workers: int = 0
    """Processes that load records, as in torch's DataLoader."""
    capture: bool | None = None
    """Whether `train` makes each step one captured CUDA graph over data that stays on the GPU. Default: where it can,
    which takes a GPU, a ``TensorDataset`` and one record for each person."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints, for a run that has a folder for them. Default: about one a minute."""
    progress: bool | Progress = False
    """True shows a bar with the ε spent; a function is called with (steps taken, steps of the plan)."""

    def __post_init__(self) -> None:
        for name in ("max_physical_batch", "checkpoint_every"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, integer(getattr(self, name), name))
        object.__setattr__(self, "num_workers", integer(self.num_workers, "num_workers", least=0))
        if self.capture not in (None, True, False):
            raise InvalidInput(f"capture is {self.capture!r}; it must be True, False or None (where it can be done)")
        if not isinstance(self.progress, bool) and not callable(self.progress):
            raise InvalidInput(
                f"progress is {self.progress!r}; it must be True, False or a function of (done, total)"
            )


DEFAULT = Execution()
