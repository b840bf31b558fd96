"""privypurse report: one page about a run, for everybody or for those who keep the data."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from privypurse._storage import replace_text
from privypurse.cli.arguments import need, writing
from privypurse.cli.showing import say

SHORT = "one page about a run: what was promised, how it is kept, what attacks found"
LONG = """\
Write the report of a run's folder: one page that loads nothing from anywhere, with charts, for phone and desktop.

It goes through what NIST SP 800-226 asks of a claim of differential privacy, in that order: ε, δ, the unit and its
neighbours; the algorithm and its accountant, whether it was attacked, what it is good for; who is trusted, side
channels, randomness, tuning, and what was released in the clear. What nobody said stands there as "not stated".

--edition public (the default) is made of the run's public files alone: it says which levels people could choose, not
which anybody chose, and no head count, no duration, no digest. A noise multiplier that was solved from everybody's
budgets is not told either. --edition internal shows everything that the folder holds: what each level was certified,
what people really spent, who could still contribute. It is sensitive, and written so that only you can read it.

--audit takes the folder of an audit. One that attacked another plan than the run's is refused. In a public edition it
may stand only if it tells of nobody: on made-up records, with noise that was fixed beforehand, over all levels that
people could choose.

--card and --registry write the same public facts for machines: a model card with a section on privacy, and an entry
of the OpenDP deployments registry. With one of them alone no page is written, unless -o names one.

examples:
  privypurse report privypurse-run -o report.html
  privypurse report privypurse-run -o inside.html --edition internal --audit audit
  privypurse report privypurse-run --card README.md --registry deployment.yaml
"""


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "folder", metavar="RUN", type=Path, help="the folder of a run: train, federate, query or demo"
    )
    command.add_argument("-o", "--out", metavar="FILE", type=Path, help="the page (default: report.html)")
    command.add_argument("--card", metavar="FILE", type=Path, help="a model card for Hugging Face; public")
    said = "an entry of the OpenDP deployments registry, as YAML; public"
    command.add_argument("--registry", metavar="FILE", type=Path, help=said)
    said = "public: for everybody (default); internal: for those who keep the data"
    command.add_argument("--edition", choices=("public", "internal"), default="public", help=said)
    command.add_argument("--audit", metavar="FOLDER", type=Path, help="what an audit of this run found")


def run(options: argparse.Namespace, console: Console) -> None:
    from privypurse.report.card import model_card
    from privypurse.report.facts import public_facts
    from privypurse.report.registry import deployment_yaml

    for path, made in ((options.card, model_card), (options.registry, deployment_yaml)):
        if path is not None:
            write(path, made(public_facts(options.folder)), public=True)
            say(console, f"written to {path}")
    if options.out is None and (options.card or options.registry):
        return
    _write_page(options, console)


def _write_page(options: argparse.Namespace, console: Console) -> None:
    need("report", "bokeh", extra="report")
    from privypurse.audit.result import AuditResult
    from privypurse.report.page import report

    audit = None if options.audit is None else AuditResult.load(options.audit)
    html = report(options.folder, edition=options.edition, audit=audit)
    path, public = options.out or Path("report.html"), options.edition == "public"
    write(path, html, public=public)
    say(console, f"written to {path}" + ("" if public else "; it is sensitive: keep it as safe as the data"))


def write(path: Path, text: str, *, public: bool) -> None:
    """A file for everybody, or for its owner's eyes."""
    with writing(path):
        replace_text(path, text)
        path.chmod(0o644 if public else 0o600)
