"""privypurse train: a whole private training run by a configuration file."""

from __future__ import annotations

import argparse
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

import privypurse as pp
from privypurse.cli.arguments import add_ledger_options, ledger_if_named, need
from privypurse.cli.showing import as_it_is, bar, default_delta, show_plan
from privypurse.errors import PrivyPurseWarning
from privypurse.runs.config import RunConfig, Table, example, read_config

if TYPE_CHECKING:
    from privypurse.runs.measures import Measured
    from privypurse.runs.training_run import Finished

SHORT = "train a model by a configuration file, each person within their own ε"
LONG = f"""\
Train a model by a TOML file, each person within their own ε.

Makes the plan (or takes one) and trains by it: Poisson subsampling at each person's own rate, per-example gradients
clipped to each person's own norm, fresh cryptographic noise. Accuracy is measured on records that take no part in
training; what is printed about the people in training is sensitive.

Everything goes into one folder. public.json lists what may be shown to others: the model (model.pt, model.json), how
a table goes in (encoder.json), and facts.json, the constants of training and what was promised. Internal, as safe to
keep as the data: config.toml, plan.json, metrics.json, with [individual] spending.csv (what each person really
spent), fingerprint.json with its key (which table it was), and run.json, which lists all files with their checksums.
test.json and curves.svg (AUC, confusions, calibration, errors by group) are internal too, unless measured under
[data] says that the test's records are public or were released before. privypurse verify looks at it all again.

[about] says who answers for the run: controller, contact, purpose, legal_basis and the like. It goes into facts.json
as it stands, and from there into every report; what is left out is "not stated". Its purpose stands in the ledger
and on people's receipts too; [training] purpose says it there in other words.

Ctrl-C ends a run between two steps. With [training] checkpoint, the folder that a run is kept in, the same command
goes on from there, and every step that was taken stays counted. Without it nothing is kept.

With ledger = "sqlite:///purses.db" above the first section, or --ledger, people are charged in that ledger: all
steps are reserved before the first one, and at_most under [plan] is the run's public cap. Internal then too:
ledger.json (which run it is) and anchor.json (how far the ledger had come). With a checkpoint the plan is kept in
that folder too, as planned.json: a run goes on with the plan that it began with. Without a ledger nobody is charged:
it says so first, and refuses where an anchor beside the run, or a ledger beside the table, shows that one is kept;
ledger = "none" trains uncharged on purpose. With a ledger it refuses where the table has another one of its own
(TABLE.ledger), whose charges the named one does not know.

A plan that was made before (plan = "plan.json") is applied by id: person = "…" under [data] names the column. A plan
without ids holds for exactly the file that it was made from; what does not match is refused.

Ranges and categories of a table come from this file, never from its rows: computing them there would be a release
that no budget pays for. Where nobody knows them, people are asked, and pay: a column with
{{ range = "estimated", within = [0, 1e7] }} or {{ values = "estimated" }}, and [private_ranges] share = 0.05, which
takes that share of every ε. Training has the rest, and ranges.json (public) says what was found. With a checkpoint it
is asked once. --dry-run says what would be asked and what it costs, and asks nobody.

[model] kind = "module:callable" imports that module, from this folder too, and calls it: it EXECUTES ITS CODE. Run
only configuration files that you trust.

to begin:
  privypurse init people.csv -o config.toml     # without a table: an example that runs as it stands
  privypurse train config.toml --dry-run        # what the plan would be, and which columns cannot be read
  privypurse train config.toml
  privypurse predict privypurse-run new.csv -o answers.csv

the example:

{textwrap.indent(example(), "  ")}"""


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", metavar="config.toml", help="what to train, on what, for whom")
    command.add_argument(
        "--dry-run", action="store_true", help="read the table and show the plan; train, charge and write nothing"
    )
    add_ledger_options(command)


def run(options: argparse.Namespace, console: Console) -> None:
    config = read_config(options.config)
    need("train")
    from privypurse.runs.training_run import dry_run, train_by

    ledger = ledger_if_named(options, config.ledger)

    def planned(plan: pp.Plan, unread: list[str], to_ask: bool = False) -> None:
        waiting.close()  # two bars at once would write over each other
        for line in _about(config, plan, ledger, to_ask):
            console.print(as_it_is(line))
        show_plan(plan, console)
        for line in map(_unread, unread):
            console.print(f"[bold red]{as_it_is(line)}[/]")
        console.print()

    with ExitStack() as waiting:
        certifying = waiting.enter_context(bar(console, "certifying"))
        waiting.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "δ = ", PrivyPurseWarning)  # the plan's facts say it
        try:
            shown = certifying if ledger is None else None  # how many levels there are follows from real balances
            if options.dry_run:
                planned(*dry_run(config, certifying=shown, ledger=ledger))
                console.print("nothing was trained, charged or written; leave --dry-run out to train")
                return
            finished = train_by(config, certifying=shown, planned=planned, bar=True, ledger=ledger)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_stopped(config.training.checkpoint)) from None
        except OSError as error:  # a full disk: a step that cannot be counted is not taken
            raise pp.PrivyPurseError(f"{error}: {_stopped(config.training.checkpoint)}") from None
    for line in [] if finished.ranges is None else finished.ranges.in_words():
        console.print(as_it_is(line))
    _show(finished, config.training.seed, console)


def _about(config: RunConfig, plan: pp.Plan, ledger: pp.Ledger | None, to_ask: bool) -> Iterator[str]:
    """What the reader of a plan has to know of where it comes from."""
    from privypurse.runs.private_ranges import to_be_asked

    if config.budgets is None:
        yield "What people grant now was not compared with the plan; with [budgets] beside plan = it is."
    else:
        if config.budgets.simulate is not None:
            yield "Budgets are simulated: nobody in the data granted them."
        if config.budgets.delta is None:
            yield default_delta("delta under [budgets]", ledger)
    if isinstance(config.data, Table) and config.private_ranges is None:
        columns = ", ".join(config.data.encoder.columns)
        yield (
            f"The model takes {config.data.encoder.width} numbers of each row: the first of `suggest --layers`. "
            f"They are made of {columns}. `predict` needs these columns too: take out what is not known of those "
            "whom the model will be asked about, such as a second target."
        )
    if to_ask:
        yield from to_be_asked(config)
    elif config.private_ranges is not None:
        share = f"{config.private_ranges.share:.3g} of everyone's ε"
        yield f"For {share} people were asked about ends and categories of columns; the plan has the rest."
    if plan.absent:
        share = f"{plan.absent / plan.people:.0%}".replace("%", " %")
        listed = "" if ledger is None else ", though by public account the cap is theirs too"
        yield (
            f"{plan.absent:,} planned people have no row in the table: they are absent and contribute nothing"
            f"{listed}. They are {share} of all, and about so much of each step stays empty. If they are those of "
            "test, take their consents out of the file and plan anew. Sensitive."
        )


def _unread(column: str) -> str:
    return (
        f"Of {column!r} no cell of the people in training says what the configuration lists. If its form or its "
        "words are others (decimals with a point, form of dates, case of classes), stop now, with Ctrl-C. Sensitive."
    )


def _stopped(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "stopped; nothing was kept, for [training] names no checkpoint folder"
    return f"stopped; steps that were taken stay counted, and the same command goes on from {checkpoint}"


def _headline(score: Measured) -> str:
    """The figures that are looked at first, in the target's own units, beside those of one answer for all."""
    found = score.figures()
    if "labels" in found:
        shares = [f"{as_it_is(name)} {_share(each)}" for name, each in found["labels"].items() if each]
        said, answer = f"accuracy {', '.join(shares)}", "the flags' shares"
    elif score.accuracy is not None:
        said, answer = f"accuracy {_share(found)}", "the classes' shares"
    else:
        explained = "" if found["r_squared"] is None else f", R² {found['r_squared']:.3f}"
        said, answer = f"error {found['mean_absolute_error']:.4g} on average{explained}", "the mean"
    without = f"always {answer}: {found['loss_without_a_model']:.4f}"
    return f"[bold]test {said}[/], test loss {score.loss:.4f} ({without})"


def _share(found: dict[str, Any]) -> str:
    """Right answers as a share, and AUC: of more than two classes the mean over each against the rest."""
    always = f"{found['accuracy']:.2%} (always the commonest class: {found['accuracy_without_a_model']:.2%})"
    several = found["auc"] if isinstance(found["auc"], dict) else {"": found["auc"]}
    known = [each for each in several.values() if each is not None]
    name = "AUC" if len(several) == 1 else "mean AUC"
    return f"{always}, {name} {sum(known) / len(known):.3f}" if known else always


def _show(finished: Finished, seed: int | None, console: Console) -> None:
    score, trained = finished.score, finished.trained
    console.print(f"{trained.steps:,} steps taken in {trained.seconds:.1f} s")
    if score is None:
        console.print(
            "no test records with a target: nothing is said of accuracy, since on people in training it is sensitive"
        )
    else:
        console.print(
            f"{_headline(score)}, on {score.records:,} records that took no part in "
            "training" + (": of people who were not charged, so internal" if score.internal else "")
        )
    if seed is not None:
        console.print(f"[bold red]seeded with {seed}: a test, NOT private[/]")
    if trained.spending is not None:
        console.print(f"spending.csv: {trained.spending.text} Sensitive.")
    console.print(f"written to {as_it_is(str(finished.folder))}; public.json says what may be shown")
