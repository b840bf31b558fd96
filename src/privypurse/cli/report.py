"""privypurse report: one page about a run, for everybody or for those who keep the data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from privypurse._storage import replace_text
from privypurse.cli.arguments import need, writing
from privypurse.cli.showing import say
from privypurse.errors import InvalidInput

if TYPE_CHECKING:
    from privypurse.audit.result import AuditResult

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
of the OpenDP deployments registry. With one of them alone no page is written, unless -o names one. A public audit
stands in the card too.

examples:
  privypurse report privypurse-run -o report.html
  privypurse report privypurse-run -o inside.html --edition internal --audit audit
  privypurse report privypurse-run --card README.md --registry deployment.yaml
"""
_PAGE = Path("report.html")
_OWN_PLAN = (
    "what the audit attacked has to be a plan of made-up budgets, which no file can check: an audit of the run's own "
    "plan tells which levels people hold (docs/report.md)"
)


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
    page = options.out is not None or not (options.card or options.registry)
    _require_used(options, page)
    if page:
        need("report", "bokeh", extra="report")
    audit, public = _audit(options), options.edition == "public"
    files = [(path, text, True) for path, text in _for_machines(options, audit if public else None)]
    if page:
        from privypurse.report.page import report

        html = report(options.folder, edition=options.edition, audit=audit)
        files.append((options.out or _PAGE, html, public))
    for path, text, shown in files:
        write(path, text, public=shown)
        say(console, f"written to {path}" + ("" if shown else "; it is sensitive: keep it as safe as the data"))
    if audit is not None and public:
        say(console, _OWN_PLAN)


def _require_used(options: argparse.Namespace, page: bool) -> None:
    """Raise for a flag that nothing written would follow, and for one file that is to be two."""
    if options.edition == "internal" and not page:
        raise InvalidInput(
            "--edition internal is of the page: --card and --registry are public. Name a page by -o, or leave it out"
        )
    if options.audit is not None and not page and not options.card:
        raise InvalidInput("--audit stands in the page and the card, and not in --registry; name one by -o or --card")
    named = [("-o", (options.out or _PAGE) if page else None), ("--card", options.card)]
    places: dict[Path, str] = {}
    for flag, path in (*named, ("--registry", options.registry)):
        if path is not None and (other := places.setdefault(path.resolve(), flag)) != flag:
            raise InvalidInput(f"{other} and {flag} both name {path}, where one replaces the other; name two files")


def _audit(options: argparse.Namespace) -> AuditResult | None:
    """The audit that --audit names; raise if the public edition may not have it."""
    from privypurse.audit.result import AuditResult
    from privypurse.report.facts import public_facts
    from privypurse.report.fitting_audits import require_public

    if options.audit is None:
        return None
    audit = AuditResult.load(options.audit)
    if options.edition == "public":
        facts = public_facts(options.folder)
        try:
            require_public(audit, facts)
        except InvalidInput as error:
            said = str(error).replace("the internal edition", "--edition internal")
            raise InvalidInput(f"--audit {options.audit}: {said}") from None
    return audit


def _for_machines(options: argparse.Namespace, audit: AuditResult | None) -> Iterator[tuple[Path, str]]:
    """The card and the registry's entry, where they are asked for."""
    from privypurse.report.card import model_card
    from privypurse.report.facts import public_facts
    from privypurse.report.registry import deployment_yaml

    if options.card is not None:
        yield options.card, model_card(public_facts(options.folder), audit)
    if options.registry is not None:
        yield options.registry, deployment_yaml(public_facts(options.folder))


def write(path: Path, text: str, *, public: bool) -> None:
    """A file for everybody, or for its owner's eyes."""
    with writing(path):
        replace_text(path, text)
        path.chmod(0o644 if public else 0o600)
