"""The consent form: every rung in the same words, none chosen beforehand, whole in itself."""

import math
from pathlib import Path

import pytest

import privypurse as pp
from browser import launched
from page_checks import Page, complaints
from privypurse.ledger.consent_form import COLUMNS, consent_form
from privypurse.ledger.lifetime import Lifetime
from privypurse.ledger.receipts import Receipt

RUNGS = Lifetime.of([(0.1, 1e-6), (0.5, 1e-6), (1.0, 1e-6), (4.0, 1e-6)]).rungs
HOSTILE = '"><script>alert(1)</script><img src=//example.org/x onerror=y>'


def test_it_is_whole_in_itself_and_shows_every_rung_alike() -> None:
    html = consent_form(RUNGS, purpose="to plan bus lines", contact="desk 4", names=["A", "B", "C", "D"])
    assert complaints(html) == []
    page = Page.of(html)
    radios = [field for field in page.all("input") if field["type"] == "radio"]
    assert [float(field["value"]) for field in radios] == [rung.epsilon for rung in RUNGS]
    assert not any("checked" in field for field in radios)  # nobody is nudged
    assert {field["name"] for field in radios} == {"epsilon"}
    labels = {field["for"] for field in page.all("label")}
    assert {field["id"] for field in page.all("input")} == labels
    said = " ".join(page.texts["form"][0].split())
    for rung, name in zip(RUNGS, "ABCD", strict=True):
        right = math.ceil(1000 * (1 - (1 - rung.delta) / (1 + math.exp(rung.epsilon))))
        assert f"{name}: right at most {right} of 1,000 times" in said
    assert page.all("form")[0]["data-columns"] == ",".join(COLUMNS)


def test_what_it_sends_is_nothing() -> None:
    script = Page.of(consent_form(RUNGS, purpose="to plan bus lines")).texts["script"]
    assert not any(word in script[0] for word in ("fetch", "XMLHttpRequest", "sendBeacon", "WebSocket", "http"))


def test_hostile_words_stay_words() -> None:
    html = consent_form(RUNGS, purpose=HOSTILE, contact=HOSTILE, names=[HOSTILE] * 4)
    assert complaints(html) == []
    assert len(Page.of(html).all("script")) == 1
    assert Page.of(html).all("form")[0]["data-purpose"] == HOSTILE


def test_bad_input_is_named() -> None:
    with pytest.raises(pp.InvalidInput, match="purpose is empty"):
        consent_form(RUNGS, purpose=" ")
    with pytest.raises(pp.InvalidInput, match="valid_until is '\">"):
        consent_form(RUNGS, purpose="to plan bus lines", valid_until=HOSTILE)
    with pytest.raises(pp.InvalidInput, match=r"2020-01-01 23:59 UTC, which is past"):
        consent_form(RUNGS, purpose="to plan bus lines", valid_until="2020-01-01")
    with pytest.raises(pp.InvalidInput, match="names has 1 entries for 4 rungs"):
        consent_form(RUNGS, purpose="to plan bus lines", names=["A"])


def a_ledger(folder: Path) -> pp.Ledger:
    url = f"sqlite:///{folder}/purses.db"
    return pp.Ledger.create(url, rungs=[(rung.epsilon, rung.delta) for rung in RUNGS], key=folder / "key")


def imported(record: Path, folder: Path) -> Receipt:
    """What a ledger has of the only person in a record, once it is imported."""
    ledger = a_ledger(folder)
    [person] = ledger.import_table(record, dry_run=True).joining
    ledger.import_table(record, dry_run=False)
    return ledger.receipt(person)


def check_imported(receipt: Receipt) -> None:
    assert (receipt.person, receipt.rung.epsilon) == ('C"0,431', 0.5)
    [consent] = receipt.consents
    assert (consent.purpose, consent.recorded_by) == ('to plan "bus" lines, & more', "consent form")
    assert f"{consent.valid_until:%Y-%m-%d}" == "2030-12-31"


def test_a_record_of_its_columns_is_what_import_reads(tmp_path: Path) -> None:
    """As the page's script writes it: the columns, then quoted cells (the test below takes it from a browser)."""
    record = tmp_path / "consent.csv"
    cells = '"C""0,431","0.5","to plan ""bus"" lines, & more","2030-12-31","consent form"'
    record.write_bytes((",".join(COLUMNS) + "\r\n" + cells + "\r\n").encode())
    check_imported(imported(record, tmp_path))


@pytest.mark.browser
@pytest.mark.needs("browser")
def test_in_a_browser_it_gives_that_record_and_asks_nobody(tmp_path: Path) -> None:
    form, record = tmp_path / "consent.html", tmp_path / "saved.csv"
    form.write_text(consent_form(RUNGS, purpose='to plan "bus" lines, & more'), encoding="utf-8")
    asked: list[str] = []
    said: list[str] = []
    with launched() as chromium:
        page = chromium.new_page(accept_downloads=True)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.goto(form.as_uri())
        page.get_by_role("button").click()
        assert page.locator("#saved").inner_text() == ""  # nothing is saved before there is a choice
        page.get_by_label("Level 2").check()
        page.get_by_label("Your id").fill(' C"0,431 ')
        page.get_by_label("Valid until").fill("2030-12-31")
        with page.expect_download() as download:
            page.get_by_role("button").click()
        download.value.save_as(record)
    assert asked == [form.as_uri()]
    assert said == []  # the page's policy had nothing to refuse
    check_imported(imported(record, tmp_path))
