"""What the Trainer's loop goes over, and where it goes on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from privypurse.huggingface.settings import goes_by_figures
from privypurse.losses import Loss
from privypurse.training.isolation.loss_fn import require_own_losses
from privypurse.training.isolation.tracking.states import Rows, state_of
from privypurse.training.isolation.tracking.structures import untracked
from privypurse.training.make_private import PrivateLoader, PrivateModel, PrivateOptimizer
from privypurse.training.other_trainers import require_counted


class Steps:
    """One turn a step, whoever was drawn, and in however many parts their records go through the model."""

    def __init__(self, private: tuple[PrivateModel, PrivateOptimizer, PrivateLoader], all_steps: int) -> None:
        """``private`` is what `make_private` gave."""
        self.model, self.optimizer, self.loader = private
        self._all = all_steps
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Of the whole plan, wherever the run is: by this the loop finds out how far it was."""
        return self._all

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._batches = iter(self.loader) if len(self.loader) else iter(())  # a killed run has counted the last ones
        while True:
            self.model.train()  # before somebody's norm is measured: it may have been evaluated meanwhile
            first = next(self._batches, None)
            if first is None:
                return
            yield {"first part": first}  # a name under which the loop looks for no labels and no tokens to count

    def parts(self, step: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
        """The batches of a step, and whether more follow: after a step of the optimizer, which adds up."""
        yield step["first part"], not self.loader.ends_step
        while not self.loader.ends_step:
            assert self._batches is not None
            yield next(self._batches), not self.loader.ends_step

    def ask(self, loss_fn: Loss, output: Any, labels: Any, losses: Tensor) -> None:
        """Raise if the loss mixes records of a step: asked at the first batches, and at random later ones.

        Nothing is asked of evaluation, nor of what the backward pass refuses: that is not one loss for each record.
        """
        one_each = isinstance(state_of(losses), Rows) and losses.dim() == 1 and losses.shape[0] > 1
        if one_each and self.optimizer._current_batch.run.keys.due("loss_fn"):
            require_own_losses(loss_fn, untracked(output), untracked(labels), losses.shape[0])

    def go_on(self, checkpoint: str, at: int, folder: Path, counted: int, scheduler: Any) -> None:
        """Go on from a checkpoint at that step; the learning rate goes by steps of the plan, lost ones too."""
        mend = "Resume in the output_dir where the checkpoint was made"
        require_counted(checkpoint, at, folder, counted, mend)
        if not goes_by_figures(scheduler):
            for _ in range(counted - getattr(scheduler, "last_epoch", at)):
                scheduler.step()

    def close(self) -> None:
        """The global generators, secret while a batch is out, are again what they were; the count is let go of."""
        if isinstance(self._batches, Generator):
            self._batches.close()
        self.optimizer.close()


def last_whole(folder: Path) -> str | None:
    """The latest checkpoint that was written to its end: a run may have been killed while it wrote one."""
    found = [file.parent for file in folder.glob("checkpoint-*/trainer_state.json")]  # is written last
    return str(max(found, key=lambda path: int(path.name.split("-")[1]))) if found else None
