"""The claims of a training run: its plan, what was certified by it, and what else the folder says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privypurse.accounting import Progress
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.runs import fingerprint
from privypurse.runs.config import NewPlan, RunConfig, Table, parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.plan_facts import SEEDED, facts_of_choices, facts_of_plan, facts_of_ranges, levels_of_plan
from privypurse.runs.public_choices import PublicChoices
from privypurse.runs.verification.findings import Finding, compared, fits, left_open, wrong
from privypurse.runs.verification.people import of_grants, of_spending
from privypurse.runs.verification.published import charged_otherwise, of_test, other_network, shown_wrongly

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_CHOSEN = {"levels", "delta", "simulated_budgets", "about_run"}
"""Facts that a ledger knows, or a configuration that is not here."""
_ROUNDING = 1e-6
"""Fourier transforms of another machine round differently, by less than this part of an ε."""


@dataclass(frozen=True)
class Beside:
    """What lies outside of the folder and can be compared with it."""

    table: Path | None = None
    checkpoint: Path | None = None
    ledger: Ledger | None = None
    progress: Progress | None = None


def of_training(folder: RunFolder, beside: Beside) -> Iterator[Finding]:
    """Everything that follows from the plan is worked out again, and compared with what the run wrote."""
    if "plan.json" not in folder.files:
        yield _without_plan(folder)
        facts = _content(folder, "facts.json") if "facts.json" in folder.files else {}
        if differences := list(charged_otherwise(folder, facts, None, facts.get("promise") == SEEDED)):
            yield compared("facts", differences, "")
        return
    try:
        plan = Plan.load(folder.path / "plan.json")
    except InvalidInput as error:
        yield wrong("plan", str(error))
        return
    config = _config(folder)
    read: dict[str, dict[str, Any]] = {
        name: _content(folder, name) for name in ("facts.json", "metrics.json") if name in folder.files
    }
    metrics = read.get("metrics.json")
    seeded = any(content.get("promise") == SEEDED for content in read.values())
    yield compared("what is listed", list(_not_listed(folder, plan, metrics)), "every file that such a run writes")
    yield compared("what is shown", list(shown_wrongly(folder, config, seeded)), "nothing that is not paid for")
    yield _certified(plan, beside.progress)
    if seeded:
        yield left_open("promise", f"{SEEDED} Nothing is promised to anybody")
    if config is not None:
        differences = [*_from_config(config, plan, seeded), *other_network(folder, config)]
        yield compared("configuration", differences, "plan and network are what it asks for")
    if metrics is None:
        yield left_open("metrics", "metrics.json is not listed: the run was broken off, or is still under way")
    else:
        yield of_test(folder, config, metrics)
        yield compared("levels", list(_from_levels(plan, metrics, seeded)), "metrics.json says what is found anew")
        yield _steps(plan, metrics)
    others = [
        *_from_facts(plan, read, config, folder.begun, seeded),
        *charged_otherwise(folder, read.get("facts.json", {}), plan, seeded),
    ]
    yield compared("facts", others, "they say what the plan says")
    yield _journal(plan, metrics, config, beside.checkpoint)
    if "spending.csv" in folder.files:
        yield from of_spending(folder.path / "spending.csv", plan)
    if config is not None and config.private_ranges is not None:
        yield left_open("ranges", "that each person's share paid for ranges.json: what they contributed is not kept")
    yield from of_grants(plan, config, beside.table, beside.ledger)
    if beside.table is not None:
        yield _table(folder, beside.table)
    if "ledger.json" in folder.files:
        yield _ledger(folder, plan, beside.ledger)


def _without_plan(folder: RunFolder) -> Finding:
    if any(not file.public for file in folder.files.values()):
        demo = folder.command == "demo" and "metrics.json" in folder.files
        if demo and str(_content(folder, "metrics.json").get("about")).startswith("Trained without privacy"):
            return left_open("certified ε", "this model was trained without privacy: nothing was promised")
        return wrong("plan", "run.json lists no plan.json, which every training run writes before its first step")
    said = "the plan is internal and was not passed on, so no ε can be recomputed; whoever holds the run can"
    return left_open("certified ε", said)


def _not_listed(folder: RunFolder, plan: Plan, metrics: dict[str, Any] | None) -> Iterator[str]:
    """Whoever takes a file off the list takes its claims along."""
    needed = ["config.toml"] if folder.command == "train" else []
    if {"model.pt", "metrics.json", "facts.json"} & set(folder.files):  # it came to its end
        needed += ["model.pt", "metrics.json", "facts.json"] + (["ledger.json"] if plan.ledger is not None else [])
    if metrics is not None and "spending" in metrics["sensitive"]:
        needed.append("spending.csv")
    for name in needed:
        if name not in folder.files:
            yield f"run.json lists no {name}, which such a run writes"


def _certified(plan: Plan, progress: Progress | None) -> Finding:
    """Each level's ε from noise, rate, clip norm and steps alone."""
    try:
        plan.require_kept(progress)
    except InvalidInput as error:
        return wrong("certified ε", str(error))
    beyond = "" if plan.filter is None else f"; beyond {plan.steps:,} steps a filter ({plan.filter}) had to keep it"
    which = "the one level" if len(plan.levels) == 1 else f"each of {len(plan.levels):,} levels"
    said = f"computed anew by {plan.accountant} for {which}, none is above its promise"
    return fits("certified ε", said + beyond)


def _config(folder: RunFolder) -> RunConfig | None:
    if "config.toml" not in folder.files:
        return None
    return parse_config((folder.path / "config.toml").read_text("utf-8"))


def _content(folder: RunFolder, name: str) -> dict[str, Any]:
    content = json.loads((folder.path / name).read_text("utf-8"))
    if not isinstance(content, dict):
        raise InvalidInput(f"{name} holds no names and values")
    return content


def _from_config(config: RunConfig, plan: Plan, seeded: bool) -> Iterator[str]:
    if (config.training.seed is not None) != seeded:
        yield f"config.toml has seed = {config.training.seed}, and the run says otherwise"
    if not isinstance(config.plan, NewPlan):
        return
    asked: dict[str, tuple[Any, Any]] = {
        "method": (config.plan.method, plan.method),
        "batch_size": (config.plan.batch_size, plan.batch_size),
        "clip_norm": (config.plan.clip_norm, plan.clip_norm),
        "accountant": (config.plan.accountant, plan.accountant),
        "extra_steps": (config.plan.extra_steps, plan.shape.extra_steps),
        "steps": (config.plan.steps, plan.steps),
        "noise_multiplier": (config.plan.noise_multiplier, plan.noise_multiplier),
    }
    for name, (wanted, made) in asked.items():
        if wanted is not None and wanted != made:
            yield f"config.toml asks for {name} = {wanted}, plan.json has {made}"


def _from_levels(plan: Plan, metrics: dict[str, Any], seeded: bool) -> Iterator[str]:
    claimed, found = metrics["sensitive"]["levels"], levels_of_plan(plan, seeded)
    if len(claimed) != len(found):
        yield f"metrics.json has {len(claimed)} lines of levels, the plan {len(found)}"
    for theirs, ours in zip(claimed, found, strict=False):
        for name, value in ours.items():
            said = theirs.get(name)
            close = _ROUNDING * value if name == "certified" else 0
            if not isinstance(said, int | float) or not abs(said - value) <= close:
                where = f"at a level of ε = {ours.get('epsilon', '?')}"
                yield f"metrics.json says {name} = {said} {where}, it is {value:.6g}"


def _steps(plan: Plan, metrics: dict[str, Any]) -> Finding:
    taken = metrics["steps"]
    if not isinstance(taken, int) or taken > plan.all_steps:
        return wrong("steps", f"{taken} were taken, where the plan pays for {plan.all_steps:,}")
    return fits("steps", f"{taken:,} of the {plan.all_steps:,} that the plan pays for, as the run says")


def _from_facts(
    plan: Plan, found: dict[str, dict[str, Any]], config: RunConfig | None, begun: str, seeded: bool
) -> Iterator[str]:
    """``found``: what facts.json and metrics.json hold, by name; ``begun``: on which day, as run.json says."""
    expected = facts_of_plan(plan, seeded)
    unsaid = {"data", "steps", "fixed_steps", "told"}  # these follow from training itself
    if config is None or plan.ledger is not None:
        unsaid |= _CHOSEN
    if plan.shape.stop is None:
        expected["told"] = []
    if config is not None:
        expected["data"] = config.data.table.name if isinstance(config.data, Table) else config.data.name
        chosen = PublicChoices.of(config, begun=begun)
        expected |= facts_of_choices(chosen, seeded) if plan.ledger is None else facts_of_ranges(chosen)
    always: dict[str, Any] = {"noise_multiplier": plan.noise_multiplier, "fixed_steps": plan.steps}
    for name, content in found.items():
        for key, value in (expected | (always if name == "metrics.json" else {})).items():
            if content.get(key) != value:
                yield f"{name} says {key} = {content.get(key)!r}, and it is {value!r}"
        if content.get("delta", 1.0) < plan.levels.delta.max():
            yield f"{name} says δ = {content['delta']:g}, where the plan promises {plan.levels.delta.max():g}"
    facts, metrics = (found.get(name, {}) for name in ("facts.json", "metrics.json"))
    if "noise_multiplier" in facts and "noise_multiplier" not in expected:
        yield "facts.json tells the noise multiplier, which was solved from everybody's budgets"
    for key in sorted(set(facts) - set(expected) - unsaid):
        yield f"facts.json says {key} = {facts[key]!r}, of which neither plan nor configuration knows"
    for key in sorted(set(facts) - set(expected) if metrics else ()):
        if key not in metrics or facts[key] != metrics[key]:
            yield f"facts.json says {key} = {facts[key]!r}, metrics.json {metrics.get(key)!r}"


def _journal(
    plan: Plan, metrics: dict[str, Any] | None, config: RunConfig | None, checkpoint: Path | None
) -> Finding:
    from privypurse.training.journal import counted_in  # here: its room is training's

    if checkpoint is None:
        kept = None if config is None else config.training.checkpoint
        said = (
            "the run kept none"
            if kept is None
            else f"it is in the checkpoint folder, {kept}; name it to compare (--checkpoint of the command)"
        )
        return left_open("journal", f"{said}. The steps are as the run says")
    whose, counted = counted_in(checkpoint)
    if whose != plan.digest():
        return wrong("journal", f"the one in {checkpoint} counts the steps of another plan")
    taken = counted if metrics is None else metrics["steps"]
    if counted > plan.all_steps or taken > counted:
        return wrong("journal", f"it counts {counted:,} steps, where the run says {taken:,} of {plan.all_steps:,}")
    return fits("journal", f"it counts {counted:,} steps of this plan")


def _table(folder: RunFolder, table: Path) -> Finding:
    same = fingerprint.fits(folder, table)
    if same is None:
        return left_open("table", "the folder holds no fingerprint of it, or not its key")
    if not same:
        return wrong("table", f"{table} is not, byte for byte, the file that the run was trained on")
    return fits("table", "it is, byte for byte, the one that the run was trained on")


def _ledger(folder: RunFolder, plan: Plan, ledger: Ledger | None) -> Finding:
    about = _content(folder, "ledger.json")
    if ledger is None:
        return left_open(
            "ledger",
            f"charges are in the ledger {about.get('ledger')}; name it to compare them (--ledger URL of the command)",
        )
    if ledger.id != about.get("ledger") or plan.ledger is None or plan.ledger.id != ledger.id:
        return wrong("ledger", f"{ledger.id} is not the one that the run and its plan name ({about.get('ledger')})")
    run = ledger.run(str(about.get("run")))
    if run is None:
        return wrong("ledger", f"it knows no run {about.get('run')!r}")
    if run.at_most != plan.ledger.at_most:
        return wrong("ledger", f"its public cap there is {run.at_most}, in the plan {plan.ledger.at_most}")
    try:
        ledger.require_anchor(folder.path)
    except InvalidInput as error:
        return wrong("ledger", str(error))
    settled = "settled" if run.settled is not None else "reserved, and not settled"
    return fits("ledger", f"the run is {settled} there under the plan's public cap, and the ledger holds its anchor")
