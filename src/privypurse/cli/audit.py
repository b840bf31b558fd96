"""privypurse audit: attack a training by a plan, and compare what the attack proves with what is claimed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.table import Table

from privypurse._storage import make_folder
from privypurse.accounting import Progress
from privypurse.cli.arguments import add_ledger_options, add_trust_option, ledger_if_named, need
from privypurse.cli.showing import bar, say
from privypurse.errors import InvalidInput

if TYPE_CHECKING:
    from privypurse.audit.result import AuditResult
    from privypurse.audit.subject import Subject

SHORT = "attack a training by a plan, and compare what is proved with what is claimed"
LONG = """\
Attack a training by a plan, and compare what the attack proves with the ε that the plan claims.

An audit is a run of its own: it trains anew by the plan, with the same noise, rates, clip norms, divisor and steps,
on made-up records, drawn from the public ranges and categories of the run. Nobody's data is read, nobody is charged,
and its model is thrown away. Of a run's folder the run's own network is trained; a plan's file has none beside it,
and a small one stands in.

--attack canaries (default): in one training records are planted whose presence shows as much as any record's can,
half of them by coins, and an attacker who sees every step guesses who is in. Three readings by budget group:
  guesses          a lower bound of ε (Steinke, Nasr & Jagielski 2023)
  f-dp             a tighter one, by the plan's own curve with σ scaled (Mahloujifar, Melis & Chaudhuri 2025)
  gaussian scores  an estimate that supposes normal scores; it decides nothing
The reading that decides is named beforehand: --verdict.

--attack small-runs: a tiny model is trained thousands of times by the plan, with one person of each group and
without; half of the runs choose a test, the other half is counted. It proves more than canaries where steps are few.

--attack lira, --attack loss: some models are trained two by two, each made-up record in one of a pair by a coin, and
an attacker who sees only what they answer says who was in (Carlini et al. 2022; Yu et al. 2023). A small ε leaves
them guessing: expect an AUC near 0.5, and that next to nothing is proved. What flags is a bound by f-dp from models
that were no shadow models; it holds for groups of a few records too.

--real trains on the people of a run in place of made-up records. It is a use like any other: with a ledger all steps
are reserved before the first, for the plan's full cost, and whoever cannot pay takes no part; without one nobody adds
it up. What it takes of everybody is said first, and --yes says that this is meant. Canaries take one training, lira
and loss half of --models of everybody. The table has to be the one that the run was trained on, byte for byte. What
is found is internal, and no public report takes it.

Exit code: 0 cleared, 1 flagged (some group's bound is above the claim), 2 wrong input, 3 a fault of the program, 130
Ctrl-C. Cleared means that this attack found nothing; it is no proof. What is found goes into a folder of its own, as
audit.json.

examples:
  privypurse audit plan.json
  privypurse audit privypurse-run --canaries 5000 -o audit
  privypurse audit plan.json --attack small-runs --runs 20000
  privypurse audit privypurse-run --real --ledger sqlite:///purses.db --key purses.key     # what it would take
  privypurse audit privypurse-run --real --ledger sqlite:///purses.db --key purses.key --yes"""


class Audit(Protocol):
    """An attack that is ready to begin."""

    @property
    def cost(self) -> str:
        """What it will take: trainings and seconds."""
        ...

    def run(self, progress: Progress | None = None) -> AuditResult: ...


def _canaries(subject: Subject, options: argparse.Namespace) -> Audit:
    from privypurse.audit.canary_audit import CanaryAudit

    return CanaryAudit(
        subject,
        canaries=options.canaries,
        groups=options.groups,
        confidence=options.confidence,
        verdict=options.verdict,
        coordinates=options.coordinates,
        device=options.device,
    )


def _small_runs(subject: Subject, options: argparse.Namespace) -> Audit:
    from privypurse.audit.small_runs_audit import SmallRunsAudit

    return SmallRunsAudit(subject.plan, runs=options.runs, groups=options.groups, confidence=options.confidence)


def _membership(subject: Subject, options: argparse.Namespace) -> Audit:
    from privypurse.audit.membership_audit import MembershipAudit

    return MembershipAudit(
        subject,
        attack=options.attack,
        models=options.models,
        groups=options.groups,
        confidence=options.confidence,
        device=options.device,
    )


ATTACKS: dict[str, Callable[[Subject, argparse.Namespace], Audit]] = {
    "canaries": _canaries,
    "small-runs": _small_runs,
    "lira": _membership,
    "loss": _membership,
}


_USED: dict[str, tuple[tuple[str, ...], object]] = {
    "canaries": (("canaries",), 2000),
    "coordinates": (("canaries",), "appended"),
    "verdict": (("canaries",), "f-dp"),
    "runs": (("small-runs",), None),
    "models": (("lira", "loss"), 16),
    "others": (("canaries", "lira", "loss"), 2000),
    "device": (("canaries", "lira", "loss"), "auto"),
}
"""Flags of some attacks alone: of which, and what they are where nobody gives them."""


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("subject", metavar="PLAN|RUN", type=Path, help="a plan's file, or the folder of a run")
    command.add_argument("--attack", choices=[*ATTACKS], default="canaries", help="default: canaries")
    command.add_argument("-o", "--out", metavar="FOLDER", type=Path, default=Path("privypurse-audit"))
    command.add_argument("--canaries", type=int, metavar="N", help="of each group (default: 2000)")
    said = "where canaries are: appended to the network (default), or up to a quarter of its own, the rest appended"
    command.add_argument("--coordinates", choices=["appended", "own"], help=said)
    command.add_argument(
        "--runs", type=int, metavar="N", help="small runs, of each kind (default: 5000, if they fit)"
    )
    command.add_argument("--models", type=int, metavar="N", help="for lira and loss, even (default: 16)")
    command.add_argument("--groups", type=int, default=4, metavar="N", help="budget groups at most (default: 4)")
    said = "of each bound, and of the verdict over all groups (default: 0.95)"
    command.add_argument("--confidence", type=float, default=0.95, metavar="P", help=said)
    command.add_argument("--verdict", choices=["f-dp", "guesses"], help="decides (default: f-dp)")
    said = "made-up people beside those who are attacked (default: 2000)"
    command.add_argument("--others", type=int, metavar="N", help=said)
    command.add_argument("--device", metavar="NAME", help="cpu, cuda, or auto (default)")
    said = "train on the run's people, who pay for it once more; internal"
    command.add_argument("--real", action="store_true", help=said)
    command.add_argument("--yes", action="store_true", help="with --real: charge them")
    add_trust_option(command)
    add_ledger_options(command)


def run(options: argparse.Namespace, console: Console) -> int:
    need("audit")
    from privypurse.audit.result import FILE
    from privypurse.audit.subject import subject_of

    _settle(options)
    if (options.out / FILE).exists():
        raise InvalidInput(f"{options.out} holds an audit already; name another folder with -o, or remove it")
    if options.real:
        subject = _on_members(options, console)
    else:
        subject = subject_of(options.subject, others=options.others, trust_code=options.trust_code)
    audit = ATTACKS[options.attack](subject, options)
    say(console, f"{options.attack}: {audit.cost}")
    said = () if subject.members is None else subject.words
    if subject.members is not None:
        make_folder(options.out)  # before anybody is charged for what could not be written
        for sentence in said:
            say(console, sentence)
    with bar(console, "attacking") as progress:
        result = audit.run(progress)
    if subject.members is not None and subject.members.ledger is not None:
        subject.members.ledger.write_anchor(options.out / "anchor.json")
    _show(result, console, said)
    say(console, f"written to {result.save(options.out)}")
    return 1 if result.flagged else 0


def _settle(options: argparse.Namespace) -> None:
    """Raise for a flag that this audit would pass over; what nobody gave is as it usually is."""
    for name in ("ledger", "key", "anchor", "yes"):
        if getattr(options, name) and not options.real:
            raise InvalidInput(f"--{name} is for --real, which charges people; add that, or leave it out")
    if options.real and options.others is not None:
        raise InvalidInput(f"--others is {options.others} beside --real, which makes nobody up; leave one out")
    for name, (attacks, usual) in _USED.items():
        if getattr(options, name) is None:
            setattr(options, name, usual)
        elif options.attack not in attacks:
            raise InvalidInput(f"--{name} is for --attack {' or '.join(attacks)}, not {options.attack}; leave it out")


def _on_members(options: argparse.Namespace, console: Console) -> Subject:
    """The people of the run; what it takes of them is said, and an error where nobody said that this is meant."""
    from privypurse.audit.subject import config_of, subject_on_members

    if options.attack == "small-runs":
        raise InvalidInput("--real is given beside --attack small-runs, which looks at no record; leave it out")
    ledger = ledger_if_named(options, config_of(options.subject).ledger)
    if ledger is not None:
        ledger.require_latest(options.out)
    subject = subject_on_members(options.subject, ledger=ledger, trust_code=options.trust_code)
    assert subject.members is not None
    price = subject.members.price(1 if options.attack == "canaries" else options.models // 2)
    if not options.yes:
        raise InvalidInput(
            f"--real trains on people's records, and they pay for it: {price}. Say --yes if this is meant, or leave "
            "--real out: made-up records cost nobody anything"
        )
    say(console, f"What it takes of people: {price}.")
    return subject


def _show(result: AuditResult, console: Console, said: tuple[str, ...]) -> None:
    """What was found; sentences that were ``said`` before are not said again."""
    whose = "made-up records" if result.data == "made up" else "members: internal"
    table = Table(title=f"audit: {result.attack}, on {whose}", title_justify="left")
    found = [name for name in ("guesses", "f-dp", "gaussian scores") if any(name in g.bounds for g in result.groups)]
    heads = {"guesses": "guesses ≥", "f-dp": "f-dp ≥", "gaussian scores": "gaussian ≈"}
    for name in ("group", "ε claimed", *(heads[name] for name in found), "AUC", ""):
        table.add_column(name, justify="right")
    for group in result.groups:
        bounds = ["" if name not in group.bounds else f"{group.bounds[name]:.3f}" for name in found]
        auc = "" if group.auc is None else f"{group.auc:.3f}"
        table.add_row(
            group.name, f"{group.claimed_epsilon:.3f}", *bounds, auc, "FLAGGED" if group.flagged else "cleared"
        )
    console.print(table)
    if result.not_attacked:
        say(console, f"Not attacked: {result.left_out_in_words}. Raise --groups to have them in.")
    for sentence in result.words:
        if sentence not in said:
            say(console, sentence)
