"""What a report may say of a run: facts for everybody, and facts for those who keep the data.

`public_facts` opens no file but those that the run listed as public. Whatever is made for others (the public page,
the model card, the registry file) takes it, and so can say nothing that follows from somebody's data or budget
without having been paid for (rule 6). `internal_facts` reads the whole folder.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.plans import file as planfile
from privypurse.runs.folder import RunFolder

FACTS, TEST, TERMS, ANSWER = "facts.json", "test.json", "terms.json", "answer.json"
Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What anybody may know of a run; None or empty where it does not say, or where telling would tell of people."""

    command: str
    """What wrote the folder: train, demo, federate or query."""
    files: tuple[str, ...]
    """The files that are public."""
    data: str | None = None
    method: str | None = None
    steps: int | None = None
    fixed_steps: int | None = None
    filter: str | None = None
    batch_size: int | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    """None where it was solved from everybody's budgets: it would tell something about them."""
    accountant: str | None = None
    at_most: float | None = None
    """An ε that nobody exceeds, whatever they grant."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """ε by the name of the level: what people could choose from, not what they chose."""
    delta: float | None = None
    unit: str | None = None
    """A "person", or a "record" where each record is counted as one person."""
    protects: str | None = None
    """What an ε protects: "data", "presence" (data, presence and declared ε) or "none"."""
    promise: str | None = None
    """The same in words: what the promise is conditional on."""
    seeded: bool = False
    """Whether noise and coins can be repeated: a test, which protects nothing."""
    under_ledger: bool | None = None
    simulated_budgets: bool = False
    told: tuple[tuple[int | None, float], ...] = ()
    """(step, answer) of each private question of a stopping rule; no step where steps are not told."""
    private_ranges: Json | None = None
    """Where ends and categories of columns were asked of the people: the share of every purse that this took."""
    test: Json | None = None
    """How good the model is on public or released records."""
    terms: Json | None = None
    """Of a federation."""
    answer: Json | None = None
    """To a question, with what it costs."""
    about: Mapping[str, str] = field(default_factory=dict)
    """What whoever answers for the run says of it: controller, contact, purpose and the like."""

    @property
    def epsilon(self) -> float | None:
        """The largest ε that may be told: a public cap, else the largest level that people could choose."""
        most = max(self.levels.values(), default=None)
        if self.at_most is None or most is None:
            return most if self.at_most is None else self.at_most
        return min(self.at_most, most)


@dataclass(frozen=True, kw_only=True)
class InternalFacts:
    """Everything that the folder holds. Sensitive: as safe to keep as the data."""

    shown: PublicFacts
    """The same facts as the public ones, read from all files; σ is among them."""
    plan: Plan | None = None
    metrics: Json = field(default_factory=dict)
    promised: FloatArray | None = None
    """With ``spent``: of each person, where their own spending was followed."""
    spent: FloatArray | None = None
    by_group: Json = field(default_factory=dict)
    accounts: Json = field(default_factory=dict)
    """By the name of each client of a federation: what its people granted and spent, and rounds it joined."""


def public_facts(run: str | Path | RunFolder) -> PublicFacts:
    """From the files that the run listed as public, and no other."""
    folder = _opened(run)
    shown = sorted(name for name, file in folder.files.items() if file.public)
    if not {FACTS, TERMS, ANSWER} & set(shown):
        raise InvalidInput(
            f"{folder.path} holds nothing that may be shown: it was seeded, or trained without privacy. Its report "
            "is for those who keep the data: choose the internal edition"
        )
    return _facts(folder, tuple(shown), {name: _read(folder, name) for name in shown if name in _READ})


def internal_facts(run: str | Path | RunFolder) -> InternalFacts:
    """From all files of the folder."""
    folder = _opened(run)
    found = {name: _read(folder, name) for name in folder.files if name in _READ}
    metrics = _json(folder, "metrics.json")
    facts = _facts(folder, tuple(sorted(n for n, f in folder.files.items() if f.public)), {FACTS: metrics, **found})
    plan = _plan(folder)
    kept: dict[str, Any] = {"noise_multiplier": metrics.get("noise_multiplier", facts.noise_multiplier)}
    if plan is not None:  # also of a run that was broken off, and where steps are not public
        kept = {"noise_multiplier": plan.noise_multiplier, "fixed_steps": plan.steps}
    promised, spent = _spending(folder)
    return InternalFacts(
        shown=_with(facts, **kept, steps=metrics.get("steps", facts.steps)),
        plan=plan,
        metrics=metrics,
        promised=promised,
        spent=spent,
        by_group=_json(folder, "spent_by_group.json"),
        accounts=_json(folder, "accounts.json"),
    )


_READ = (FACTS, TEST, TERMS, ANSWER)
_NUMBERS = ("steps", "fixed_steps", "batch_size", "clip_norm", "noise_multiplier", "at_most", "delta")
_WORDS = ("data", "method", "filter", "accountant", "unit", "protects", "promise")


def _facts(folder: RunFolder, shown: tuple[str, ...], read: Mapping[str, Json]) -> PublicFacts:
    facts, terms, answer = read.get(FACTS, {}), read.get(TERMS), read.get(ANSWER)
    asked = {} if answer is None or "unit" not in answer else {"unit": answer["unit"]}
    known = {**_of_terms(terms), **asked, **{name: facts[name] for name in (*_NUMBERS, *_WORDS) if name in facts}}
    return PublicFacts(
        command=folder.command,
        files=shown,
        **known,
        levels=dict(facts.get("levels", {})),
        seeded=bool(facts.get("seeded", False)),
        under_ledger=facts.get("under_ledger"),
        simulated_budgets=bool(facts.get("simulated_budgets", False)),
        told=tuple((one.get("step"), float(one["answer"])) for one in facts.get("told", ())),
        private_ranges=facts.get("private_ranges"),
        test=read.get(TEST),
        terms=terms,
        answer=answer,
        about={"date": folder.begun or "not stated"}
        | {str(name): str(said) for name, said in facts.get("about_run", {}).items()},
    )


def _of_terms(terms: Json | None) -> dict[str, Any]:
    """What a federation's terms say in the words of a plan."""
    if terms is None:
        return {}
    same = ("batch_size", "clip_norm", "noise_multiplier", "accountant", "delta")
    return {"method": "federated", "steps": terms["rounds"] * terms["local_steps"], **{k: terms[k] for k in same}}


def _with(facts: PublicFacts, **changes: Any) -> PublicFacts:
    return PublicFacts(**{**vars(facts), **changes})


def _opened(run: str | Path | RunFolder) -> RunFolder:
    return run if isinstance(run, RunFolder) else RunFolder.open(run)


def _read(folder: RunFolder, name: str) -> Json:
    try:
        content = json.loads((folder.path / name).read_text("utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{folder.path / name} is no JSON: {error}; put the original back") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{folder.path / name} holds no fields; put the original back")
    return content


def _json(folder: RunFolder, name: str) -> Json:
    return _read(folder, name) if name in folder.files else {}


def _plan(folder: RunFolder) -> Plan | None:
    if "plan.json" not in folder.files:
        return None
    return planfile.load(folder.path / "plan.json", Plan)


def _spending(folder: RunFolder) -> tuple[FloatArray | None, FloatArray | None]:
    """ε promised and spent of each person in spending.csv."""
    if "spending.csv" not in folder.files:
        return None, None
    with (folder.path / "spending.csv").open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        both = np.array([(float(promised), float(spent)) for _, promised, spent in lines]).reshape(-1, 2)
    return both[:, 0], both[:, 1]
