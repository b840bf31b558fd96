"""`transformers.Trainer` with draws, clipping, noise and count by a plan; evaluation and checkpoints are its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers.trainer_utils import TrainOutput

from privypurse import losses
from privypurse.errors import InvalidInput
from privypurse.huggingface.discreet import DiscreetTrainer, public
from privypurse.huggingface.settings import (
    refuse_scheduler,
    refuse_settings,
    refuse_trainer,
    require_labels,
)
from privypurse.huggingface.steps import Steps, last_whole
from privypurse.plans import Plan
from privypurse.training.callbacks import OTHERS
from privypurse.training.execution import Execution
from privypurse.training.individual.accounting import Individual
from privypurse.training.individual.spending import Spending
from privypurse.training.isolation.tracking.structures import untracked
from privypurse.training.make_private import make_private
from privypurse.training.other_trainers import FIGURES, Told, refuse_begun

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


class Trainer(DiscreetTrainer):
    """`transformers.Trainer` that trains by a plan. What it is given besides is that Trainer's own.

    ``loss_fn(output, labels)`` gives one loss for each record; without, it is the one of `pp.losses` that fits the
    model. ``person, max_records_per_person, individual, ledger, purpose, seed, wide_sums`` are those of
    `make_private`. The plan says how many steps there are and how many people are drawn for one on average;
    ``per_device_train_batch_size`` is how many records go through the model at once. Steps are counted in
    ``output_dir`` before they are released; a killed run goes on with ``train(resume_from_checkpoint=True)``.
    Logs, callbacks and checkpoints get step, learning rate and the plan's public ε; and figures on evaluation data
    where ``measured`` says that its records are "public" or "released". If nothing is said they are of other
    "people", for whom figures are not private: `evaluate` gives them to its caller alone. They and the training loss
    (rule 6) go, with ``internal=True``, into a local file.

    Guarantee: that of `make_private`; it is the same code. Settings that would break it are refused.
    """

    def __init__(
        self,
        model: nn.Module,
        args: transformers.TrainingArguments,
        *,
        plan: Plan,
        loss_fn: losses.Loss | None = None,
        person: Any = None,
        max_records_per_person: int | None = None,
        individual: Individual | None = None,
        ledger: Ledger | None = None,
        purpose: str = "",
        seed: int | None = None,
        wide_sums: bool = False,
        measured: str = OTHERS,
        internal: bool = False,
        **options: Any,
    ) -> None:
        folder = Path(str(args.output_dir)) / "_private"  # by its name it is not pushed to a hub
        told = Told(plan, seed, measured, folder / FIGURES if internal else None)
        refuse_settings(args, options, plan, told)
        args = copy.copy(args)
        args.max_steps, args.ignore_data_skip = plan.all_steps, True  # draws are not replayed (rule 10)
        self._loss, self._resumes = losses.for_model(model) if loss_fn is None else loss_fn, False
        self._steps: Steps | None = None
        self._planned = {"person": person, "max_records_per_person": max_records_per_person, "individual": individual}
        self._planned |= {"ledger": ledger, "purpose": purpose, "seed": seed, "wide_sums": wide_sums}
        super().__init__(plan, told, folder, args, model=model, **options)
        refuse_trainer(self)
        refuse_scheduler(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> TrainOutput:
        """Take the steps that are left. Nobody is told the training loss: it is NaN."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_whole(self._folder.parent) or True
        self._resumes = bool(resume_from_checkpoint)
        refuse_scheduler(self)  # one may have been set since
        try:
            done = super().train(resume_from_checkpoint, *arguments, **options)
        finally:
            if self._steps is not None:
                self.optimizer = self._steps.optimizer.inner
                self._steps.close()
        return TrainOutput(done.global_step, float("nan"), public(done.metrics))

    def spending(self) -> Spending:
        """What each person has spent so far, with ``individual``. Sensitive."""
        if self._steps is None:
            raise InvalidInput("nothing was trained yet, so nothing is spent: call train() first")
        return self._steps.optimizer.spending()

    def get_train_dataloader(self) -> Any:
        """Make the run: the loop asks for this first."""
        model: Any = self.model
        data: Any = self.train_dataset
        self.accelerator.prepare_model(model, evaluation_mode=True)  # autocast, and no sum over processes
        collate = self._get_collator_with_removed_columns(self.data_collator, description="training")
        size, workers = self.args.per_device_train_batch_size, self.args.dataloader_num_workers
        execution, journal = Execution(max_physical_batch=size, num_workers=workers), self._folder / "steps"
        options = {**self._planned, "collate_fn": collate, "execution": execution, "journal": journal}
        private = make_private(model, self.create_optimizer(), data, self._plan, loss_fn=self._loss, **options)
        self._steps, self.optimizer = Steps(private, self._plan.all_steps), private[1]
        if not self._resumes:
            taken, left = self.optimizer.steps_taken, len(private[2])
            refuse_begun(self._folder, taken, left, "train(resume_from_checkpoint=True)", "another output_dir")
        return self._steps

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        return self._steps.model if training and self._steps is not None else model

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Clip and add up the step's records, part by part; the loop's own optimizer.step() releases the sum."""
        assert self._steps is not None
        optimizer = self._steps.optimizer
        self.state.global_step = optimizer.steps_taken  # past those that a killed run counted and lost
        model.train()
        seen: list[Tensor] = []
        for part, more in self._steps.parts(inputs):
            found = self.compute_loss(model, self._prepare_inputs(part))
            optimizer.backward(found)
            seen.append(untracked(found).detach())
            if more:
                optimizer.step()
        self.keep(optimizer.steps_taken + 1, torch.cat(seen))
        return torch.zeros((), device=self.args.device)  # for the loop's logs, which people's losses do not enter

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """One loss for each record, in evaluation too."""
        given, name = dict(inputs), self.label_names[0]
        require_labels(given, name)
        labels = given.pop(name)
        outputs = model(**given)
        found = self._loss(outputs, labels)
        if self._steps is not None:
            self._steps.ask(self._loss, outputs, labels, found)
        return (found, outputs) if return_outputs else found

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        assert self._steps is not None
        counted = self._steps.optimizer.steps_taken  # a state brings its own count
        super()._load_optimizer_and_scheduler(checkpoint)
        if self._planned["seed"] is not None:  # which takes its steps again
            counted = self._steps.optimizer.steps_taken
        if checkpoint is not None:
            self._steps.go_on(checkpoint, self.state.global_step, self._folder, counted, self.lr_scheduler)
