"""Plans: what training will do, fixed before it starts, and what it will have cost everyone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from privypurse.arrays import FloatArray
from privypurse.plans import file, summary
from privypurse.plans.level_table import LevelTable
from privypurse.plans.planned_training import PlannedTraining
from privypurse.plans.promise import Promise
from privypurse.plans.training_shape import TrainingShape


class Plan(PlannedTraining):
    """What training will do, fixed before it starts.

    Guarantee (unless ``promise`` says NONE): after all ``steps`` of training by Poisson subsampling and Gaussian
    noise with exactly these rates, clip norms and σ, every person's ε at their δ is at most ``spent()``, which is at
    most what they promised; ``accountant`` names the proof. A person's records are one privacy unit. With
    ``extra_steps`` a filter keeps everyone within what they promised in whatever follows (``filter`` names it).

    A plan made with ids is its people's: `applied_to` puts rates and clip norms into the order of whatever records
    they have now (rule 13). One without ids holds for the rows that it was made for, in their order.

    Rates, clip norms and levels are as sensitive as the budgets that they follow from (rule 6).
    """

    @classmethod
    def of_round(
        cls,
        method: str,
        accountant: str,
        shape: TrainingShape,
        purses: tuple[FloatArray, FloatArray],
        rate: FloatArray,
        **whose: Any,
    ) -> Plan:
        """The plan of one round of a larger whole, which promises nothing by itself.

        ``purses`` are ε and δ of each level, ``whose`` says who is in which and what records are theirs.
        """
        return cls(
            method=method,
            accountant=accountant,
            promise=Promise.PART,
            shape=shape,
            levels=LevelTable(
                epsilon=purses[0],
                delta=purses[1],
                rate=rate,
                clip_norm=np.full(rate.size, shape.clip_norm),
                capped=rate == 1.0,
            ),
            **whose,
        )

    def summary(self) -> str:
        """The plan for people to read."""
        return summary.text(self)

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return summary.html(self)

    def digest(self) -> str:
        """A fingerprint, to compare plans by: equal plans for the same people have equal ones."""
        return file.digest(self)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. The file is as sensitive as the budgets."""
        file.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan back, bit for bit; an altered or damaged file is an error."""
        return file.load(Path(path), cls)
