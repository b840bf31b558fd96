"""Choosing settings on validation records, stage by stage; what is chosen follows from the scores alone.

The image sets are public, so that looking at their validation records costs nobody anything. On people's data it
would be a use like any other, and charged (rule 16).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from privypurse.errors import PrivyPurseError
from reproductions.specs import Settings, Spec


class Unfinished(PrivyPurseError):
    """Something was asked for that needs a finished choice."""


@dataclass(frozen=True)
class Job:
    """One training with its score: to choose by ("choice", on validation records) or to report ("final", on test)."""

    purpose: str
    method: str
    settings: Settings
    seed: int

    def plain(self) -> dict[str, Any]:
        return {
            "purpose": self.purpose,
            "method": self.method,
            "settings": self.settings.plain(),
            "seed": self.seed,
        }

    @property
    def key(self) -> str:
        return json.dumps(self.plain(), sort_keys=True)


Scores = Mapping[str, Mapping[str, float]]
"""Validation accuracy by job's key and decay."""


@dataclass(frozen=True)
class Chosen:
    """What a method trains with."""

    settings: Settings
    decay: float
    score: float


@dataclass(frozen=True)
class Choice:
    """A table's stages and the scores so far."""

    spec: Spec
    scores: Scores

    def missing(self) -> list[Job]:
        """What the first unfinished stage still has to train; nothing, once all are finished."""
        return self._through()[0]

    def chosen(self, method: str) -> Chosen:
        missing, current = self._through()
        if missing:
            raise Unfinished(f"the choice for {self.spec.name} is not finished: {len(missing)} scores are missing")
        return self._best(method if self._own(method) else self.spec.lead, [current[method]])

    def _own(self, method: str) -> bool:
        """Whether some stage was about this method's own scores."""
        return any(method in stage.methods for stage in self.spec.stages)

    def _through(self) -> tuple[list[Job], dict[str, Settings]]:
        current = dict.fromkeys((*self.spec.methods, self.spec.lead), self.spec.settings)
        for stage in self.spec.stages:
            missing: list[Job] = []
            for method in stage.methods or (self.spec.lead,):
                candidates = stage.candidates(current[method])
                some = [job for job in self._jobs(method, candidates) if job.key not in self.scores]
                missing += some
                if not some:
                    best = self._best(method, candidates).settings
                    current.update({method: best} if stage.methods else dict.fromkeys(current, best))
            if missing:
                return missing, current
        return [], current

    def _jobs(self, method: str, candidates: Iterable[Settings]) -> list[Job]:
        return [Job("choice", method, each, seed) for each in candidates for seed in self.spec.choice_seeds]

    def _best(self, method: str, candidates: Iterable[Settings]) -> Chosen:
        """The candidate and the average with the best mean score over the seeds; the first of equals."""
        best: Chosen | None = None
        for settings in candidates:
            scores = [self.scores[job.key] for job in self._jobs(method, [settings])]
            for decay in settings.decays:
                mean = sum(each[str(decay)] for each in scores) / len(scores)
                if best is None or mean > best.score:
                    best = Chosen(settings, decay, mean)
        assert best is not None
        return best


def final_jobs(choice: Choice) -> list[Job]:
    """All rows of the table, seed by seed, so that whoever breaks off has whole seeds."""
    chosen = {method: choice.chosen(method).settings for method in choice.spec.methods}
    return [Job("final", method, chosen[method], seed) for seed in range(choice.spec.seeds) for method in chosen]
