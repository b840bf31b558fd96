"""A report as people meet it: every chart drawn, offline, in light and dark, on a phone, by keyboard, by ear."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from browser import launched
from components import require
from privypurse.audit.canary_audit import CanaryAudit
from privypurse.audit.membership_audit import MembershipAudit
from privypurse.audit.result import AuditResult
from privypurse.audit.small_runs_audit import SmallRunsAudit
from privypurse.audit.subject import Subject, subject_of

require("report")
from privypurse.report import page  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.needs("browser")]
PHONE, DESK = 320, 1000  # pixels; WCAG 2.2, 1.4.10 asks for 320


def wait_for_charts(tab: Any) -> None:
    from playwright.sync_api import expect

    expect(tab.locator(".chart:not([data-ready])")).to_have_count(0, timeout=120_000)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    sys.path.insert(0, str(Path(__file__).parent))
    from test_report_page import a_federation, audit

    folder = tmp_path_factory.mktemp("reports")
    html = {
        "public": page.report(run),
        "internal": page.report(run, edition="internal", audit=audit(plan=None)),
        "federated": page.report(a_federation(folder / "federation"), edition="internal"),
    }
    for name, text in html.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in html}


@contextmanager
def shown(chromium: Any, file: Path, width: int = DESK, **options: Any) -> Iterator[Any]:
    """The page with all its charts drawn. It asked for nothing but itself, and nothing was wrong."""
    context = chromium.new_context(viewport={"width": width, "height": 700}, **options)
    tab, asked, said = context.new_page(), [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(file.as_uri())
    wait_for_charts(tab)
    yield tab
    assert asked == [file.as_uri()]
    assert said == []
    context.close()


EVERY = pytest.mark.parametrize("name", ["public", "internal", "federated"])
INK = """async (id) => {
  const canvases = [];
  const look = (node) => {
    if (node.tagName === "CANVAS") canvases.push(node);
    for (const child of node.children ?? []) look(child);
    if (node.shadowRoot) look(node.shadowRoot);
  };
  look(document.getElementById(id));
  return canvases.map((canvas) => {
    const { width, height } = canvas;
    if (!width || !height) return 0;
    const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    const colours = new Set();
    for (let k = 0; k < data.length; k += 4 * 7) colours.add((data[k] << 16) | (data[k + 1] << 8) | data[k + 2]);
    return colours.size;
  }).reduce((a, b) => Math.max(a, b), 0);
}"""
"""How many colours there are on the canvas of a chart: one that is blank has one."""


@EVERY
@pytest.mark.parametrize(("scheme", "width"), [("light", DESK), ("dark", PHONE)])
def test_every_chart_is_drawn(chromium: Any, pages: dict[str, Path], name: str, scheme: str, width: int) -> None:
    with shown(chromium, pages[name], width, color_scheme=scheme) as tab:
        ids = tab.evaluate("[...document.querySelectorAll('.chart')].map((chart) => chart.id)")
        assert len(ids) == {"public": 2, "internal": 12, "federated": 2}[name]
        assert min(tab.evaluate(INK, each) for each in ids) > 5
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.evaluate("document.getElementById(arguments).replaceChildren()".replace("arguments", f"'{ids[0]}'"))
        assert tab.evaluate(INK, ids[0]) == 0  # a chart that is not there would be seen


def test_charts_follow_the_readers_light_and_dark(chromium: Any, pages: dict[str, Path]) -> None:
    corner = """() => {
      const look = (node) => node.tagName === "CANVAS" ? node
        : [...(node.shadowRoot?.children ?? []), ...node.children].map(look).find((found) => found);
      const canvas = look(document.querySelector(".chart"));
      return [...canvas.getContext("2d").getImageData(2, 2, 1, 1).data].slice(0, 3);
    }"""
    with shown(chromium, pages["public"], color_scheme="light") as tab:
        assert tab.evaluate(corner) == [255, 255, 255]
        tab.evaluate("document.querySelector('.chart').firstElementChild.id = 'before'")
        tab.emulate_media(color_scheme="dark")
        tab.locator("#before").wait_for(state="detached")
        wait_for_charts(tab)
        assert tab.evaluate(corner) == [22, 24, 27]


@EVERY
@pytest.mark.needs("axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(chromium: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with shown(chromium, pages[name], color_scheme=scheme) as tab:
        tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert [each["id"] for each in Axe().run(tab).response["violations"]] == []
        tab.evaluate("document.documentElement.style.setProperty('--quiet', '#7a7a7a')")
        tab.evaluate("document.documentElement.style.setProperty('--ground', '#6a6a6a')")
        assert "color-contrast" in [each["id"] for each in Axe().run(tab).response["violations"]]


def test_a_series_is_hidden_and_shown_by_keyboard(chromium: Any, pages: dict[str, Path]) -> None:
    visible = (
        "Bokeh.documents.map((one) => one.roots()[0].renderers).flat()"
        ".filter((one) => one.name === 'certified').map((one) => one.visible)"
    )
    with shown(chromium, pages["internal"]) as tab:
        button = tab.get_by_role("button", name="certified", exact=True)
        button.focus()
        tab.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "false"
        assert tab.evaluate(visible) == [False]
        tab.keyboard.press("Space")
        assert tab.evaluate(visible) == [True]


def test_the_numbers_of_a_chart_are_read_out(chromium: Any, pages: dict[str, Path]) -> None:
    with shown(chromium, pages["internal"], PHONE) as tab:
        chart = tab.get_by_role("figure", name="Promised and certified, by level")
        summary = chart.locator("summary")
        summary.focus()
        tab.keyboard.press("Enter")
        assert chart.get_by_role("columnheader").count() == 3
        assert chart.get_by_role("cell").count() == 2 * 3
        assert tab.get_by_role("heading", level=1).count() == 1


ATTACKS: dict[str, Callable[[Subject], AuditResult]] = {
    "canaries": lambda subject: CanaryAudit(subject, canaries=100).run(),
    "small-runs": lambda subject: SmallRunsAudit(subject.plan, runs=200).run(),
    "lira": lambda subject: MembershipAudit(subject, "lira", models=6).run(),
    "loss": lambda subject: MembershipAudit(subject, "loss", models=6).run(),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_an_attack_really_found_is_drawn(chromium: Any, run: Path, tmp_path: Path, attack: str) -> None:
    found = AuditResult.from_json(ATTACKS[attack](subject_of(run)).to_json())
    (tmp_path / "report.html").write_text(page.report(run, edition="internal", audit=found), encoding="utf-8")
    wanted = {"roc"} | ({"bounds"} if found.groups[0].bounds else set())
    with shown(chromium, tmp_path / "report.html", PHONE) as tab:
        assert {key for key in ("bounds", "roc") if tab.locator(f"#{key}").count()} == wanted
        assert all(tab.evaluate(INK, key) > 5 for key in wanted)
        section = tab.locator("section", has=tab.get_by_role("heading", name="Was it tried?")).inner_text()
        assert f"{attack}, on made-up records" in section
        assert all(" ".join(words.split()) in " ".join(section.split()) for words in found.words)
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE
