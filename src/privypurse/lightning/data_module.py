"""Training data for Lightning, with the plan: `trainer.fit(module, datamodule=PrivateDataModule(dataset, plan))`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, IterableDataset

from privypurse.errors import InvalidInput
from privypurse.lightning.discreet import refuse_loaders_of
from privypurse.lightning.private_fit import PrivateFit, Step
from privypurse.plans import Plan
from privypurse.training.callbacks import OTHERS
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.individual.accounting import Individual
from privypurse.training.individual.spending import Spending
from privypurse.training.isolation.batches import Collate
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.ledger_account import require_ledger
from privypurse.training.other_trainers import FIGURES, Told, refuse_extra_steps

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


class PrivateDataModule(LightningDataModule):
    """Training data and the plan by which alone Lightning's Trainer gets to them.

    Guarantee: that of `make_private`; it is the same code. Settings of the Trainer that would break it are refused.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        plan: Plan,
        *,
        val_dataloaders: Any = None,
        measured: str = OTHERS,
        person: Any = None,
        folder: str | Path | None = None,
        internal: bool = False,
        loss_reduction: str = "mean",
        max_records_per_person: int | None = None,
        collate_fn: Collate | None = None,
        individual: Individual | None = None,
        loss_fn: Loss | None = None,
        ledger: Ledger | None = None,
        purpose: str = "",
        execution: Execution = DEFAULT,
        seed: int | None = None,
        wide_sums: bool = False,
    ) -> None:
        """``training_step`` gives one loss for each record, or their mean (``loss_reduction`` says which).

        A batch of Lightning is a step of the plan, however many were drawn and in however many parts they go through
        the module. ``folder`` is the run's: steps are counted there before they are released, and a run that was
        killed goes on with the same folder and ``trainer.fit(…, ckpt_path=…)``. ``measured`` says whose records
        ``val_dataloaders`` have: what validation finds is shown where they are "public" or "released". If nothing is
        said they are of other "people", for whom figures are not private: `trainer.validate` gives them to its
        caller alone. They, and what is logged while training (rule 6), go with ``internal`` into a file of the
        folder, else nowhere. The others are those of `make_private`; ``individual`` measures ``loss_fn`` of what
        ``forward`` gives, and `spending` is the outcome.
        """
        if internal and folder is None:
            raise InvalidInput("internal=True keeps figures in a file of the run; give folder=")
        require_ledger(plan, ledger, seed)
        refuse_extra_steps(plan)
        _refuse_loaders(val_dataloaders, dataset)
        whose = {"person": person, "max_records_per_person": max_records_per_person, "collate_fn": collate_fn}
        charged = {"individual": individual, "loss_fn": loss_fn, "ledger": ledger, "purpose": purpose, "seed": seed}
        summed = {"loss_reduction": loss_reduction, "execution": execution, "wide_sums": wide_sums}
        where = None if folder is None else Path(folder)
        told = Told(plan, seed, measured, where / FIGURES if where is not None and internal else None)
        self.private_fit = PrivateFit(dataset, plan, told, where, whose | charged | summed)
        super().__init__()
        if val_dataloaders is not None:
            self.val_dataloader = lambda: val_dataloaders  # type: ignore[method-assign]

    def spending(self) -> Spending:
        """What each person has spent so far, with ``individual``. Sensitive."""
        return self.private_fit.spending()

    @property
    def trainer(self) -> Any:
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        """Lightning says for whom the data are: from now on its fit is private."""
        self._trainer = trainer
        if trainer is not None and self.private_fit not in trainer.callbacks:
            trainer.callbacks.insert(0, self.private_fit)

    def train_dataloader(self) -> PrivateSteps:
        return PrivateSteps(self.private_fit)


class PrivateSteps:
    """What Lightning goes over: one turn a step of the plan."""

    def __init__(self, private_fit: PrivateFit) -> None:
        self._fit = private_fit

    def __len__(self) -> int:
        """All steps of the plan, those of earlier calls included."""
        return self._fit.plan.all_steps

    def __iter__(self) -> Iterator[Step]:
        return self._fit.steps()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: where the run is stands in the optimizer's state and in the run's folder."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to do."""


def _refuse_loaders(val_dataloaders: Any, trained: Any) -> None:
    """Raise for what Lightning cannot go over, and for the training data: now, not when steps were taken."""
    loaders = tree_leaves(val_dataloaders)
    if any(isinstance(each, Dataset | Tensor) and not isinstance(each, IterableDataset) for each in loaders):
        raise InvalidInput(
            f"val_dataloaders is a {type(val_dataloaders).__name__} of records; give a loader of them: "
            "DataLoader(others, batch_size=…)"
        )
    refuse_loaders_of(trained, loaders)
