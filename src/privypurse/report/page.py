"""A run's report: one page that loads nothing, in an edition for everybody or for those who keep the data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from bokeh.resources import Resources

from privypurse._pages import page
from privypurse.audit.result import AuditResult
from privypurse.errors import InvalidInput
from privypurse.report import other_charts, people_charts, promise_charts, sections
from privypurse.report.charts import TOKENS, Chart
from privypurse.report.facts import InternalFacts, PublicFacts, internal_facts, public_facts
from privypurse.report.fitting_audits import require_public, require_same_plan
from privypurse.report.sections import Section
from privypurse.runs.folder import RunFolder


class Edition(StrEnum):
    """Whom a report is for."""

    PUBLIC = "public"
    INTERNAL = "internal"


def report(run: str | Path | RunFolder, *, edition: str = Edition.PUBLIC, audit: AuditResult | None = None) -> str:
    """The page of a run's folder.

    Guarantee of the public edition: it follows from the run's public files (and a public audit) alone, so it costs
    nobody more than those did. The internal one is sensitive: it shows whatever the folder holds (rule 6). An audit
    of another plan than the run's is refused in both.
    """
    if edition not in tuple(Edition):
        raise InvalidInput(f"edition is {edition!r}; choose {' or '.join(map(repr, map(str, Edition)))}")
    if edition == Edition.INTERNAL:
        facts = internal_facts(run)
        if audit is not None:
            require_same_plan(audit, facts.shown)
        return _page(facts.shown, internal_sections(facts, audit), Edition.INTERNAL)
    shown = public_facts(run)
    if audit is not None:
        require_public(audit, shown)
    return _page(shown, public_sections(shown, audit), Edition.PUBLIC)


def public_sections(facts: PublicFacts, audit: AuditResult | None = None) -> list[Section]:
    """From public facts alone."""
    return [
        sections.promise(facts, _drawn(promise_charts.levels_chart(facts))),
        sections.algorithm(facts),
        sections.correctness(audit, _of_audit(audit)),
        sections.utility(facts, _drawn(other_charts.others_chart(facts))),
        sections.trust(facts),
        sections.handling(facts),
        sections.answering(facts),
    ]


def internal_sections(facts: InternalFacts, audit: AuditResult | None = None) -> list[Section]:
    """The same, with everything that the folder holds."""
    shown = facts.shown
    promised = _drawn(promise_charts.levels_chart(shown), promise_charts.certified_chart(facts))
    kept = _drawn(promise_charts.steps_chart(facts), promise_charts.rates_chart(facts))
    good = _drawn(other_charts.others_chart(shown), other_charts.rounds_chart(facts))
    spent = _drawn(
        people_charts.individual_chart(facts),
        people_charts.against_loss_chart(facts),
        *people_charts.group_charts(facts),
        people_charts.active_chart(facts),
        other_charts.clients_chart(facts),
    )
    return [
        sections.promise(shown, promised),
        sections.algorithm(shown, kept),
        sections.correctness(audit, _of_audit(audit)),
        sections.utility(shown, good),
        sections.people(facts, spent),
        sections.trust(shown),
        sections.handling(shown),
        sections.answering(shown),
    ]


def _of_audit(audit: AuditResult | None) -> tuple[Chart, ...]:
    return () if audit is None else _drawn(other_charts.bounds_chart(audit), other_charts.roc_chart(audit))


def _drawn(*charts: Chart | None) -> tuple[Chart, ...]:
    """Those for which there is something to draw."""
    return tuple(chart for chart in charts if chart is not None)


def _page(facts: PublicFacts, shown: Iterable[Section], edition: Edition) -> str:
    parts = list(shown)
    drawing = any(part.charts for part in parts)
    return page(
        "report.html",
        script="report.js" if drawing else None,
        libraries=Resources(mode="inline", components=["bokeh"]).js_raw[:1] if drawing else (),
        styles=("page.css", "report.css"),
        title="Privacy report" + (f": {facts.data}" if facts.data else ""),
        edition=str(edition),
        short=sections.in_short(facts),
        sections=parts,
        tokens=json.dumps(TOKENS),
    )
