"""A Trainer that tells logs, callbacks and checkpoints what may be told, and keeps the rest (rule 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor

from privypurse.plans import Plan
from privypurse.training.other_trainers import Told, refuse_training_data

_SENSITIVE = {"loss", "grad_norm", "total_flos"}


class DiscreetTrainer(transformers.Trainer):
    """Tells step, learning rate, the plan's public ε, and evaluation on public or released data."""

    def __init__(self, plan: Plan, told: Told, folder: Path, args: Any, **options: Any) -> None:
        self._plan, self._told, self._folder = plan, told, folder
        super().__init__(args=args, **options)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        self.state.epoch = self.state.global_step / self._plan.all_steps
        shown = public(logs)
        if "learning_rate" in shown and self._told.epsilon is not None:
            shown["epsilon_at_most"] = self._told.epsilon
        if shown and self.callback_handler.callbacks:
            super().log(shown, start_time)

    def keep(self, step: int, losses: Tensor | None = None, found: dict[str, float] | None = None) -> None:
        """Write what is internal into the local file, if there is one."""
        if self._told.internal and self.is_world_process_zero():
            of_training = {} if losses is None else {"training_loss": float(losses.mean())}
            self._told.keep(step, self._get_learning_rate(), of_training, found)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        with self._unheard():
            return super().evaluate(*arguments, **options)

    def predict(self, *arguments: Any, **options: Any) -> Any:
        with self._unheard():
            return super().predict(*arguments, **options)

    def _evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        found = super()._evaluate(*arguments, **options)
        if self._told.hides:
            self.keep(self.state.global_step, found=found)
        return found

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        """No callback hears what is found on people for whom it is not private."""
        handler = self.callback_handler
        hearing = handler.callbacks
        handler.callbacks = [] if self._told.hides else hearing
        try:
            yield
        finally:
            handler.callbacks = hearing

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        mine: Any = self.eval_dataset
        asked = mine if eval_dataset is None else eval_dataset
        refuse_training_data(mine[asked] if isinstance(asked, str) else asked, self.train_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        refuse_training_data(test_dataset, self.train_dataset)
        return super().get_test_dataloader(test_dataset)

    # A generator's state would tell dropout masks, in which an absence shows; and no draw is repeated (rule 10).
    def _save_rng_state(self, output_dir: str) -> None: ...

    def _load_rng_state(self, checkpoint: str | None) -> None: ...


def public(figures: dict[str, float]) -> dict[str, float]:
    """Without figures on people's records, and how long they took."""
    return {
        name: value for name, value in figures.items() if name not in _SENSITIVE and not name.startswith("train_")
    }
