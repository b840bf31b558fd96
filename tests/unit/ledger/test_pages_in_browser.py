"""The consent form and a receipt as people meet them: by keyboard, by ear, on a phone, in light and dark, offline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import privypurse as pp
from browser import launched
from privypurse.accounting.releases import Gaussian
from privypurse.ledger.consent_form import consent_form

pytestmark = [pytest.mark.browser, pytest.mark.needs("browser")]
PURPOSE = 'to plan "bus" lines, & more'
PHONE, DESK = 320, 1000  # pixels; WCAG 2.2, 1.4.10 asks for 320
FADED = "document.documentElement.style.setProperty('--quiet', '#9a9a9a')"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A form, and the receipt of somebody with a long history and a long id."""
    folder = tmp_path_factory.mktemp("pages")
    ledger = pp.Ledger.create(f"sqlite:///{folder / 'purses.db'}", epsilons=[0.5, 1, 2], delta=1e-5, key=bytes(32))
    person = "customer_" + "0123456789" * 6
    ledger.join([person], 0.5, purpose=PURPOSE, recorded_by="desk")
    for number in range(3):
        charges = ledger.charges_of([Gaussian(30.0)])
        ledger.charge(f"question-{'f' * 40}{number}", ledger.members([person]), charges, [0], 0.2, purpose=PURPOSE)
    ledger.change([person], 1.0)
    ledger.withdraw([person])
    html = {
        "form": consent_form(ledger.rungs, purpose=PURPOSE, contact="desk 4", valid_until="2030-12-31"),
        "receipt": ledger.receipt(person, contact="desk 4").html(),
    }
    files = {name: folder / f"{name}.html" for name in html}
    for name, file in files.items():
        file.write_text(html[name], encoding="utf-8")
    return files


@contextmanager
def shown(chromium: Any, file: Path, width: int = DESK, **options: Any) -> Iterator[Any]:
    """The page in a window of this width. It asked for nothing but itself, and the browser had nothing to refuse."""
    context = chromium.new_context(viewport={"width": width, "height": 700}, accept_downloads=True, **options)
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.goto(file.as_uri())
    yield page
    assert asked == [file.as_uri()]
    assert said == []
    context.close()


BOTH = pytest.mark.parametrize("name", ["form", "receipt"])

FAINT = """() => {
  const parsed = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parsed(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  let texts = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility()) continue;
    if (element.closest("script, style, noscript, meter")) continue;
    const [light, dark] = [luminance(parsed(getComputedStyle(element).color)), luminance(ground(element))]
      .sort((a, b) => b - a);
    texts += 1;
    if ((light + 0.05) / (dark + 0.05) < 4.5) faint.push(node.data.trim());
  }
  return [texts, faint];
}"""
"""How many texts there are, and which have less contrast than 4.5 (WCAG 2.2, 1.4.3), by the colours on the screen."""


@BOTH
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(chromium: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    with shown(chromium, pages[name], color_scheme=scheme) as page:
        texts, faint = page.evaluate(FAINT)
        assert texts > 20
        assert faint == []
        if scheme == "light":  # a grey that would be too faint is seen
            page.evaluate(FADED)
            assert page.evaluate(FAINT)[1] != []


OUTSIDE = """() => [...document.querySelectorAll("main *")]
  .filter((one) => one.checkVisibility() && !one.closest("thead"))
  .filter((one) => one.getBoundingClientRect().right > innerWidth || one.scrollWidth > innerWidth)
  .map((one) => one.outerHTML.slice(0, 80))"""


@BOTH
def test_on_a_phone_nothing_lies_beyond_the_edge(chromium: Any, pages: dict[str, Path], name: str) -> None:
    with shown(chromium, pages[name], PHONE) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
        assert page.evaluate(OUTSIDE) == []
        page.evaluate("document.querySelector('main p').append('x'.repeat(200))")  # breaks, as everything long does
        assert page.evaluate(OUTSIDE) == []
        page.evaluate("document.querySelector('main').append(document.createElement('hr'))")
        page.evaluate("document.querySelector('hr').style.width = '400px'")
        assert page.evaluate(OUTSIDE) != []


def test_words_of_a_wide_table_are_not_broken(chromium: Any, pages: dict[str, Path]) -> None:
    with shown(chromium, pages["receipt"]) as page:
        heights = page.evaluate("[...document.querySelectorAll('th')].map((th) => [th.innerText, th.clientHeight])")
        line = min(height for _, height in heights)
        for text, height in heights:
            assert height <= line + 26 * (len(text.split()) - 1) + 1, text


def told(page: Any) -> dict[str, int]:
    """How many parts of tables the browser itself tells a screen reader of."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in nodes if not node["ignored"]]
    return {role: roles.count(role) for role in ("table", "columnheader", "row", "cell")}


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_receipt_is_read_out_as_tables_with_names(chromium: Any, pages: dict[str, Path], width: int) -> None:
    with shown(chromium, pages["receipt"], width) as page:
        used = page.get_by_role("region", name="What was used")
        assert used.get_by_role("table").count() == 1
        assert used.get_by_role("row").count() == 1 + 3 + 2  # names, uses, all together and left
        assert used.get_by_role("columnheader").count() == 6
        assert used.get_by_role("cell", name="question", exact=False).count() == 3
        assert page.get_by_role("meter", name="share of your purse used").count() == 1
        assert page.get_by_role("heading", level=1).count() == 1
        assert told(page) == {"table": 2, "columnheader": 5 + 6, "row": (1 + 3) + (1 + 3 + 2), "cell": 3 * 5 + 5 * 6}
        page.evaluate("document.querySelectorAll('table, tr, td').forEach((one) => { one.role = 'presentation'; })")
        assert told(page)["cell"] == 0


def test_on_a_phone_each_figure_says_what_it_is(chromium: Any, pages: dict[str, Path]) -> None:
    said = """(one) => getComputedStyle(one, "::before").content.replaceAll('"', "") + one.innerText"""
    with shown(chromium, pages["receipt"], PHONE) as page:
        cells = page.get_by_role("region", name="What was used").get_by_role("cell")
        read = [cells.nth(place).evaluate(said) for place in range(cells.count())]
        assert sum(text.startswith("used: ") for text in read) == 3
        assert sum(text.startswith("at most: ") for text in read) == 3
        left = page.get_by_role("row", name="left")
        assert left.count() == 1
        assert "used" not in left.inner_text()


def test_the_form_tells_each_field_its_name(chromium: Any, pages: dict[str, Path]) -> None:
    with shown(chromium, pages["form"]) as page:
        group = page.get_by_role("group", name="How much may your data tell, at most?")
        for level, right in ((1, 623), (2, 732), (3, 881)):
            name = f"Level {level}: right at most {right} of 1,000 times"
            assert group.get_by_role("radio", name=name, exact=True).count() == 1
        assert group.get_by_role("radio", checked=True).count() == 0  # nobody is nudged
        assert page.get_by_role("textbox", name="Your id, as you know it").count() == 1
        assert page.get_by_label("Valid until").count() == 1
        assert page.get_by_role("button", name="Save my choice as a file").count() == 1
        small = "(one) => one.getBoundingClientRect().width < 24 || one.getBoundingClientRect().height < 24"
        fields = page.locator("input, button")  # WCAG 2.2, 2.5.8
        assert not any(fields.nth(place).evaluate(small) for place in range(fields.count()))


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.type || document.activeElement.tagName")


def test_the_form_is_filled_in_by_keyboard_alone(chromium: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    ring = "parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
    with shown(chromium, pages["form"]) as page:
        page.keyboard.press("Tab")
        assert focused(page) == "choice-1"
        assert page.evaluate(ring) >= 2
        page.keyboard.press("Space")
        page.keyboard.press("ArrowDown")
        assert page.get_by_label("Level 2").is_checked()
        page.keyboard.press("Tab")
        assert focused(page) == "person"
        assert page.evaluate(ring) >= 2
        page.keyboard.press("Enter")  # without an id nothing is saved
        assert page.get_by_role("status").inner_text() == ""
        page.keyboard.type("C0431")
        for _ in range(8):  # through the parts of a date
            page.keyboard.press("Tab")
            if focused(page) == "submit":
                break
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        download.value.save_as(tmp_path / "consent.csv")
        assert "Saved as consent.csv" in page.get_by_role("status").inner_text()
    _, row = (tmp_path / "consent.csv").read_text(encoding="utf-8").splitlines()
    assert row.startswith('"C0431","1.0"')


@BOTH
@pytest.mark.parametrize("kept", [True, False])
def test_what_is_smuggled_in_does_not_run(
    chromium: Any, pages: dict[str, Path], name: str, kept: bool, tmp_path: Path
) -> None:
    """Because of the page's policy: without it the script runs, which shows that it would be seen."""
    text, bad = pages[name].read_text(encoding="utf-8"), tmp_path / "bad.html"
    text = text.replace("</main>", '<script>document.title = "taken"</script></main>')
    bad.write_text(text if kept else text.replace("Content-Security-Policy", "x-none"), encoding="utf-8")
    page = chromium.new_page()
    page.goto(bad.as_uri())
    assert (page.title() == "taken") == (not kept)
    page.close()
