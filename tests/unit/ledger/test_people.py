"""Joining, changing, leaving, importing: by id, in one canonical form, with nothing personal kept."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from privypurse.ledger import consents, entries, keys, people
from privypurse.ledger.standing import NEVER

KEY = bytes(range(32))
ONE = np.ones((1, 3), dtype=np.int64)


def test_an_id_is_the_same_person_however_it_is_written(ledger: pp.Ledger) -> None:
    ledger.join([7, "Ann", "Zo\u00eb"], [0.5, 1.0, 4.0])
    people = ledger.members(["Zoe\u0308", " 7", "Ann "])
    assert people.numbers.tolist() == [2, 0, 1]
    assert people.rung.tolist() == [2, 0, 1]
    with pytest.raises(pp.InvalidInput, match="'07' never joined"):
        ledger.members(["07"])


def test_no_id_is_in_the_file(ledger: pp.Ledger, tmp_path: Path) -> None:
    ledger.join(["Annabelle-Lee"], 1.0)
    ledger.charge("one", ledger.members(["Annabelle-Lee"]), ONE, [0])
    ledger.export(tmp_path / "export.jsonl")
    ledger.backup(tmp_path / "backup.db")
    for file in tmp_path.iterdir():
        assert b"Annabelle" not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


def test_many_are_found_as_few_are(ledger: pp.Ledger) -> None:
    ids = [f"C{number:05d}" for number in range(3000)]
    ledger.join(ids, 1.0)
    rng = np.random.default_rng(0)
    mixed = rng.permutation(3000)
    assert (ledger.members([ids[place] for place in mixed]).numbers == mixed).all()
    assert ledger.members([ids[2999], ids[0]]).numbers.tolist() == [2999, 0]
    with pytest.raises(pp.InvalidInput, match=r"'x' never joined this ledger; join them first"):
        ledger.members([*ids, "x"])


def test_hashes_that_agree_in_one_half_are_told_apart() -> None:
    known = np.array([[5, 1], [5, 2], [6, 1], [5, 3]], dtype=np.uint64)
    wanted = np.array([[5, 3], [5, 1], [6, 2], [5, 2], [9, 9], [6, 1], [5, 4]], dtype=np.uint64)
    assert people._matched(known, wanted).tolist() == [3, 0, -1, 1, -1, 2, -1]
    assert people._matched(known[:0], wanted).tolist() == [-1] * 7


WRONG_IDS = [
    (["a", "b", "a"], "'a' more than once"),
    (["a", " a"], "more than once"),
    ([1, "1"], "more than once"),
    ([], "empty"),
    ([1.0], "float"),
    ([""], "no id"),
    ([["a"]], "one id"),
]


@pytest.mark.parametrize(("ids", "said"), WRONG_IDS)
def test_bad_ids_are_refused_everywhere(ledger: pp.Ledger, ids: list[object], said: str) -> None:
    ledger.join(["a", "b", 1], 1.0)
    for use in (ledger.members, ledger.withdraw, ledger.forget, lambda ids: ledger.change(ids, 0.5)):
        with pytest.raises(pp.InvalidInput, match=said):
            use(ids)
    assert ledger.show().entries == 2


def test_states_are_checked_and_named(ledger: pp.Ledger) -> None:
    ledger.join(["a"], 1.0)
    with pytest.raises(pp.InvalidInput, match="'a' holds a purse already"):
        ledger.join(["b", "a"], 1.0)
    with pytest.raises(pp.InvalidInput, match="'b' never joined"):
        ledger.change(["a", "b"], 0.5)
    with pytest.raises(pp.InvalidInput, match=r"0\.7, which is no rung"):
        ledger.join(["b"], 0.7)
    with pytest.raises(pp.InvalidInput, match="2 entries for 3 ids"):
        ledger.join(["x", "y", "z"], [0.5, 1.0])
    ledger.withdraw(["a"])
    with pytest.raises(pp.InvalidInput, match="'a' has withdrawn"):
        ledger.change(["a"], 0.5)


def test_a_grant_ends_when_it_says_and_no_clock_brings_it_back(
    ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = entries.now()
    tomorrow = datetime.fromtimestamp(now / 1e6 + 86_400, tz=UTC)
    ledger.join(["a", "b"], 1.0, valid_until=tomorrow)
    ledger.join(["c"], 1.0)
    who = ledger.members(["a", "b", "c"])
    assert ledger.charge("one", who, ONE, [0, 0, 0]).admitted.all()
    monkeypatch.setattr(entries, "now", lambda: now + 2 * 86_400 * 10**6)
    assert ledger.charge("two", who, ONE, [0, 0, 0]).admitted.tolist() == [False, False, True]
    monkeypatch.setattr(entries, "now", lambda: now)
    assert ledger.charge("three", who, ONE, [0, 0, 0]).admitted.tolist() == [False, False, True]
    ledger.join(["a"], 1.0, valid_until="2100-01-01")
    assert ledger.charge("four", who, ONE, [0, 0, 0]).admitted.tolist() == [True, False, True]
    assert ledger.verify().sound


def test_an_entry_by_a_wrong_clock_is_refused_or_confirmed(
    ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written, it would end every dated consent, for no later entry is earlier (the twin: by a confirmed day)."""
    now, day = entries.now(), 86_400 * 10**6
    ledger.join(["a"], 1.0, valid_until=datetime.now(UTC) + timedelta(days=3000))
    who, before = ledger.members(["a"]), ledger.anchor()
    far = now + 29_200 * day + day // 2
    monkeypatch.setattr(entries, "now", lambda: far)
    for act in (
        lambda: ledger.join(["b"], 1.0),
        lambda: ledger.withdraw(["a"]),
        lambda: ledger.charge("one", who, ONE, [0]),
    ):
        with pytest.raises(pp.InvalidInput, match=r"29,200 days after .* PRIVYPURSE_LEDGER_TODAY=2"):
            act()
    assert ledger.anchor() == before
    monkeypatch.setattr(entries, "now", lambda: now)
    assert ledger.consenting(who).all()
    monkeypatch.setattr(entries, "now", lambda: now + 399 * day)  # a ledger that nobody wrote to for a year
    ledger.join(["b"], 1.0)
    monkeypatch.setattr(entries, "now", lambda: far)
    today = datetime.fromtimestamp(far / 1e6, tz=UTC)
    monkeypatch.setenv(entries.TODAY, f"{today - timedelta(days=1):%Y-%m-%d}")
    with pytest.raises(pp.InvalidInput, match="Set the clock right"):
        ledger.join(["c"], 1.0)
    monkeypatch.setenv(entries.TODAY, f"{today:%Y-%m-%d}")
    ledger.join(["c"], 1.0)
    monkeypatch.setattr(entries, "now", lambda: now)
    assert not ledger.consenting(who).any()
    assert ledger.verify().sound


def test_who_may_pay_and_when_it_was_are_one_look_at_the_clock(
    ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grant that ends while a run is being reserved."""
    clock = itertools.count(entries.now() + 10**6)
    monkeypatch.setattr(entries, "now", lambda: next(clock))
    ledger.join(["a"], 1.0)
    who, paid = ledger.members(["a"]), []
    for number in range(12):
        ledger.change(["a"], 1.0, valid_until=datetime.fromtimestamp((next(clock) + 3 + number) / 1e6, tz=UTC))
        paid.append(bool(ledger.charge(f"{number}", who, ONE, [0]).admitted[0]))
    assert {True, False} == set(paid)
    assert ledger.verify().problems == []


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("2030-01-02 00:00", 1893542400),
        ("2030-01-02T01:00:00+01:00", 1893542400),
        (datetime(2030, 1, 2), 1893542400),
        (None, None),
    ],
)
def test_times_are_in_utc(given: object, seconds: int | None) -> None:
    assert consents.microseconds(given) == (None if seconds is None else seconds * 10**6)


@pytest.mark.parametrize("given", [date(2030, 1, 2), "2030-01-02", " 2030-01-02 "])
def test_a_date_includes_its_day(given: object) -> None:
    """To the last microsecond before 3 January."""
    assert consents.microseconds(given) == (1893542400 + 86_400) * 10**6 - 1
    assert consents.microseconds("9999-12-31") == 253402300800 * 10**6 - 1


def test_who_consents_until_a_day_takes_part_on_it(ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.join(["a"], 1.0, valid_until="2099-06-30")
    who = ledger.members(["a"])
    monkeypatch.setenv(entries.TODAY, "2099-06-30")
    for moment, admitted in (
        (datetime(2099, 6, 30, 23, 59, tzinfo=UTC), True),
        (datetime(2099, 7, 1, tzinfo=UTC), False),
    ):
        monkeypatch.setattr(entries, "now", lambda at=moment: int(at.timestamp()) * 10**6)
        assert ledger.charge(f"{moment}", who, ONE, [0]).admitted.all() == admitted


def test_no_end_and_nothing_said_are_two_things() -> None:
    assert [consents.microseconds(given) for given in ("", "until withdrawn", None)] == [NEVER, NEVER, None]


@pytest.mark.parametrize("given", ["soon", 20300102, 1.5])
def test_what_is_no_time_is_refused(given: object) -> None:
    with pytest.raises(pp.InvalidInput, match="valid_until"):
        consents.microseconds(given)


@pytest.mark.parametrize("late", [0, 1, 86_400 * 10**6])
def test_a_grant_that_has_ended_before_it_is_given_is_refused(
    ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    now = 1_900_000_000 * 10**6  # 2030-03-17 17:46:40 UTC
    monkeypatch.setenv(entries.TODAY, "2030-03-17")
    monkeypatch.setattr(entries, "now", lambda: now)
    ended = datetime(2030, 3, 17, 17, 46, 40) - timedelta(microseconds=late)
    with pytest.raises(pp.InvalidInput, match=f"valid_until is {ended:%Y-%m-%d %H:%M} UTC, which is past"):
        ledger.join(["a"], 1.0, valid_until=ended)
    assert not ledger.knows("a")
    ledger.join(["a"], 1.0, valid_until=datetime(2030, 3, 17, 17, 46, 41))
    assert ledger.knows("a")
    with pytest.raises(pp.InvalidInput, match="which is past"):
        ledger.change(["a"], 0.5, valid_until=ended)


def test_a_table_whose_consents_have_ended_allows_nothing(ledger: pp.Ledger, tmp_path: Path) -> None:
    """Also where they ended at the very second from which clocks count."""
    rows = "a,1,1970-01-01 00:00\nb,1,1969-12-31\nc,1,2001-02-03\n"
    (tmp_path / "ended.csv").write_text(f"person,epsilon,valid_until\n{rows}")
    ledger.join(["a", "b", "c"], 1.0)
    assert ledger.import_table(tmp_path / "ended.csv", dry_run=False).renewing == ("a", "b", "c")
    people = ledger.members(["a", "b", "c"])
    assert ledger.balances(people).tolist() == [0, 0, 0]
    assert not ledger.charge("one", people, ONE, [0, 0, 0]).admitted.any()
    assert ledger.verify().sound


def test_history_is_of_one_person_alone(ledger: pp.Ledger) -> None:
    ledger.join(["a", "b"], [0.5, 1.0], purpose="research", recorded_by="desk")
    ledger.reserve("one", ledger.members(["a", "b"]), np.array([[5, 6, 7], [1, 2, 3]]), [0, 1]).settle()
    ledger.charge("two", ledger.members(["b"]), ONE, [0])
    ledger.change(["a"], 4.0)
    ledger.withdraw(["a"])
    told = [(event.kind, event.run, event.rung, event.charged) for event in ledger.history("a")]
    assert told == [
        ("join", None, 0, None),
        ("reserve", "one", None, (5, 6, 7)),
        ("settle", "one", None, (5, 6, 7)),
        ("consent", None, 2, None),
        ("withdraw", None, None, None),
    ]
    assert ledger.history("a")[0].meta["purpose"] == "research"
    assert not any("new" in event.meta or "request" in event.meta for event in ledger.history("a"))


def ends(ledger: pp.Ledger, person: str) -> str | None:
    """When somebody's consent ends, by their receipt."""
    last = [consent for consent in ledger.receipt(person).consents if consent.rung is not None][-1]
    return None if last.valid_until is None else f"{last.valid_until:%Y-%m-%d}"


def purpose(ledger: pp.Ledger, person: str) -> str:
    return [consent for consent in ledger.receipt(person).consents if consent.rung is not None][-1].purpose


class TestRenewal:
    def test_what_is_not_said_stays(self, ledger: pp.Ledger) -> None:
        """Two people with two ends raise at once, and neither gets the other's, or none."""
        ledger.join(["a"], 0.5, purpose="care", valid_until="2100-01-01")
        ledger.join(["b"], 0.5, purpose="research", valid_until="2100-02-02")
        ledger.join(["c"], 0.5)
        ledger.change(["c", "b", "a"], [1.0, 1.0, 4.0])
        assert ledger.members(["a", "b", "c"]).rung.tolist() == [2, 1, 1]
        assert [ends(ledger, one) for one in "abc"] == ["2100-01-01", "2100-02-02", None]
        assert [purpose(ledger, one) for one in "abc"] == ["care", "research", ""]
        ledger.change(["a", "b"], 1.0, purpose="buses")
        assert [ends(ledger, one) for one in "ab"] == ["2100-01-01", "2100-02-02"]
        assert [purpose(ledger, one) for one in "ab"] == ["buses", "buses"]

    def test_an_end_is_moved_or_taken_away_by_saying_so(self, ledger: pp.Ledger) -> None:
        ledger.join(["a"], 0.5, purpose="care", valid_until="2100-01-01")
        ledger.change(["a"], 0.5, valid_until="2100-03-03")
        assert (ends(ledger, "a"), purpose(ledger, "a")) == ("2100-03-03", "care")
        ledger.change(["a"], 0.5, valid_until="until withdrawn")
        assert ends(ledger, "a") is None

    def test_the_end_that_stays_is_kept(self, ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not only on the receipt: a raise must not make a consent last for ever."""
        now = entries.now()
        ledger.join(["a"], 0.5, valid_until=datetime.fromtimestamp(now / 1e6 + 86_400, tz=UTC))
        ledger.change(["a"], 1.0)
        monkeypatch.setattr(entries, "now", lambda: now + 2 * 86_400 * 10**6)
        assert not ledger.charge("one", ledger.members(["a"]), ONE, [0]).admitted.any()
        with pytest.raises(pp.InvalidInput, match="consent of 'a' has ended by its date; give valid_until="):
            ledger.change(["a"], 4.0)
        ledger.change(["a"], 4.0, valid_until="2100-01-01")
        assert ledger.charge("two", ledger.members(["a"]), ONE, [0]).admitted.all()
        assert ledger.verify().problems == []

    def test_who_comes_back_says_all_anew(self, ledger: pp.Ledger) -> None:
        ledger.join(["a"], 0.5, purpose="care", valid_until="2100-01-01")
        ledger.withdraw(["a"])
        ledger.join(["a"], 0.5)
        assert (ends(ledger, "a"), purpose(ledger, "a")) == (None, "")


def test_two_ids_are_not_merged_and_the_reason_is_said(ledger: pp.Ledger) -> None:
    ledger.join(["a", "b"], 1.0)
    with pytest.raises(pp.Unsupported, match=r"'a' and 'b' cannot be merged.*same release.*1\.47.*Withdraw one"):
        ledger.merge("a", "b")
    assert ledger.show().entries == 2


class TestImport:
    TABLE = "person,epsilon,purpose,valid_until\na,1,care,2100-01-01\nb,0.5,,\nc,4,care,2100-01-01\nd,1,,\n"

    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        path = tmp_path / "consents.csv"
        path.write_text(self.TABLE)
        return path

    def test_a_dry_run_shows_the_difference_and_writes_nothing(self, ledger: pp.Ledger, table: Path) -> None:
        ledger.join(["b", "c", "d", "e"], [1.0, 1.0, 1.0, 1.0])
        before = ledger.show()
        difference = ledger.import_table(table)
        assert difference.joining == ("a",)
        assert difference.raising == ("c",)
        assert difference.lowering == ("b",)
        assert difference.unchanged == 1
        assert ledger.show() == before
        assert ledger.import_table(table, dry_run=False) == difference
        assert ledger.members(["a", "b", "c", "d", "e"]).rung.tolist() == [1, 0, 2, 1, 1]
        assert ledger.import_table(table).unchanged == 4
        assert ledger.history("a")[0].meta["purpose"] == "care"
        assert str(difference) == "1 join, 0 come back, 1 raise, 1 lower, 0 renew, 1 stay as they are"

    @pytest.mark.parametrize("recorder", ["", "desk 4"])
    def test_what_somebody_said_since_is_not_undone_by_a_table_from_before(
        self, ledger: pp.Ledger, tmp_path: Path, recorder: str
    ) -> None:
        """A patient more in the file, and the file read again: whoever lowered their grant meanwhile keeps it low."""
        path = tmp_path / "consents.csv"
        path.write_text("person,epsilon\na,4\nb,4\nc,0.5\n")
        ledger.import_table(path, dry_run=False)
        ledger.change(["a"], 0.5, recorded_by=recorder)
        path.write_text("person,epsilon\na,4\nb,4\nc,1\nd,1\n")
        difference = ledger.import_table(path, dry_run=False)
        assert (difference.joining, difference.raising, difference.kept) == (("d",), ("c",), ("a",))
        assert "1 not raised above a change that is not marked as this table's" in str(difference)
        assert ledger.members(["a", "b", "c", "d"]).rung.tolist() == [0, 2, 1, 1]
        path.write_text("person,epsilon\na,4\nc,4\n")  # c was raised by such a table, and may be again
        assert ledger.import_table(path).raising == ("c",)
        assert ledger.import_table(path, recorded_by="another").kept == ("a", "c")
        difference = ledger.import_table(path, raising=True, dry_run=False)
        assert (difference.raising, difference.kept) == (("a", "c"), ())
        assert ledger.members(["a", "c"]).rung.tolist() == [2, 2]
        path.write_text("person,epsilon\na,0.5\n")
        ledger.change(["a"], 4.0, recorded_by=recorder)
        assert ledger.import_table(path).lowering == ("a",)  # a table may always lower
        assert ledger.verify().problems == []

    def test_a_table_of_one_recorder_raises_whom_it_lowered(self, ledger: pp.Ledger, tmp_path: Path) -> None:
        path = tmp_path / "form.csv"
        ledger.join(["a"], 4.0)
        for epsilon, name in ((0.5, "lowering"), (4, "raising")):
            path.write_text(f"person,epsilon,recorded_by\na,{epsilon},form\n")
            assert getattr(ledger.import_table(path, dry_run=False), name) == ("a",)

    def test_another_end_or_purpose_with_the_same_epsilon_is_a_renewal(
        self, ledger: pp.Ledger, tmp_path: Path
    ) -> None:
        ledger.join(["a", "b", "c", "d"], 1.0, purpose="care", valid_until="2100-01-01")
        path = tmp_path / "next.csv"
        path.write_text(
            "person,epsilon,purpose,valid_until\na,1,care,2100-01-01\nb,1,,2101-01-01\nc,1,buses,2100-01-01\nd,4,,\n"
        )
        difference = ledger.import_table(path)
        assert difference.renewing == ("b", "c")
        assert (difference.raising, difference.unchanged) == (("d",), 1)
        assert "2 renew" in str(difference)
        assert ends(ledger, "b") == "2100-01-01"
        assert ledger.import_table(path, dry_run=False) == difference
        assert [ends(ledger, one) for one in "abcd"] == ["2100-01-01", "2101-01-01", "2100-01-01", None]
        assert [purpose(ledger, one) for one in "abcd"] == ["care", "care", "buses", "care"]
        assert ledger.import_table(path).unchanged == 4
        assert ledger.verify().problems == []

    def test_a_table_that_says_nothing_of_ends_and_purposes_leaves_them(
        self, ledger: pp.Ledger, tmp_path: Path
    ) -> None:
        ledger.join(["a", "b"], 1.0, purpose="care", valid_until="2100-01-01")
        path = tmp_path / "next.csv"
        path.write_text("person,epsilon\na,1\nb,4\n")
        assert ledger.import_table(path, dry_run=False).unchanged == 1
        assert [ends(ledger, one) for one in "ab"] == ["2100-01-01"] * 2
        assert [purpose(ledger, one) for one in "ab"] == ["care"] * 2
        assert ledger.import_table(path, purpose="buses").renewing == ("a", "b")

    def test_a_row_whose_end_is_past_brings_nobody_in(
        self, ledger: pp.Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 1_900_000_000 * 10**6  # in March 2030
        monkeypatch.setenv(entries.TODAY, "2030-03-17")
        monkeypatch.setattr(entries, "now", lambda: now)
        path = tmp_path / "old.csv"
        path.write_text("person,epsilon,valid_until\na,1,2030-06-01\nb,1,2030-01-01\nc,1,2030-01-01\n")
        ledger.join(["c"], 1.0)
        difference = ledger.import_table(path, dry_run=False)
        assert (difference.joining, difference.ended, difference.renewing) == (("a",), ("b",), ("c",))
        assert not ledger.knows("b")
        assert ledger.balances(ledger.members(["c"])).tolist() == [0]  # the table says that c's consent is over
        monkeypatch.setattr(entries, "now", lambda: now + 365 * 86_400 * 10**6)
        before = ledger.show()
        assert ledger.import_table(path, dry_run=False).ended == ("a", "b", "c")
        assert ledger.show() == before

    @pytest.mark.parametrize("returning", [False, True])
    def test_a_consent_that_has_ended_is_renewed_only_by_a_row_that_says_until_when(
        self, ledger: pp.Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returning: bool
    ) -> None:
        now = 1_900_000_000 * 10**6  # in March 2030
        monkeypatch.setenv(entries.TODAY, "2030-03-17")
        monkeypatch.setattr(entries, "now", lambda: now)
        ledger.join(["a", "b", "c"], 1.0, purpose="care", valid_until="2030-06-01")
        monkeypatch.setattr(entries, "now", lambda: now + 365 * 86_400 * 10**6)
        path, before = tmp_path / "routine.csv", ledger.show()
        path.write_text("person,epsilon\na,1\nb,4\n")
        for purpose_now in ("", "buses"):
            said = ledger.import_table(path, purpose=purpose_now, returning=returning, dry_run=False)
            assert (said.ended, said.unchanged, said.returning) == (("a", "b"), 0, ())
        assert ledger.show() == before
        assert not ledger.consenting(ledger.members(["a", "b"])).any()
        path.write_text("person,epsilon,valid_until\na,1,2032-01-01\nb,4,until withdrawn\nc,1,2030-06-01\n")
        said = ledger.import_table(path, returning=returning, dry_run=False)
        assert (said.renewing, said.raising, said.ended) == (("a",), ("b",), ("c",))
        assert [ends(ledger, one) for one in "abc"] == ["2032-01-01", None, "2030-06-01"]
        assert [purpose(ledger, one) for one in "abc"] == ["care"] * 3
        assert ledger.consenting(ledger.members([*"abc"])).tolist() == [True, True, False]
        assert ledger.verify().problems == []

    def test_who_had_left_comes_back_if_asked_for_with_what_they_had_spent(
        self, ledger: pp.Ledger, table: Path
    ) -> None:
        ledger.join(["a"], 1.0)
        ledger.charge("one", ledger.members(["a"]), ONE, [0])
        ledger.withdraw(["a"])
        stayed = ledger.import_table(table, dry_run=False)
        assert (stayed.left, stayed.returning) == (("a",), ())
        assert ledger.balances(ledger.members(["a"])).tolist() == [0]
        assert ledger.import_table(table, returning=True, dry_run=False).returning == ("a",)
        assert ledger.balances(ledger.members(["a"])).tolist() == [ledger.rungs[1].limit - 1]

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("person,epsilon\na,1\nb,0.7\n", "no rung"),
            ("person,epsilon\na,1\na,1\n", "name everybody once"),
            ("id,epsilon\na,1\n", "no column 'person'"),
            ("person,epsilon,valid_until\na,1,soon\n", "valid_until"),
        ],
    )
    def test_a_wrong_row_is_told_and_nothing_is_written(
        self, ledger: pp.Ledger, tmp_path: Path, text: str, said: str
    ) -> None:
        (tmp_path / "wrong.csv").write_text(text)
        for dry_run in (True, False):
            with pytest.raises(pp.InvalidInput, match=said):
                ledger.import_table(tmp_path / "wrong.csv", dry_run=dry_run)
        assert ledger.show().entries == 1

    def test_a_data_frame_does_too(self, ledger: pp.Ledger) -> None:
        import pandas

        frame = pandas.DataFrame({"who": [1, 2], "eps": [0.5, 1.0], "purpose": ["care", None]})
        ledger.import_table(frame, person="who", epsilon="eps", dry_run=False)
        assert ledger.members(["1", "2"]).rung.tolist() == [0, 1]


class TestKeys:
    def test_the_file_is_made_for_its_owner_and_found_again(self, tmp_path: Path) -> None:
        path = tmp_path / "key"
        url = f"sqlite:///{tmp_path / 'purses.db'}"
        pp.Ledger.create(url, [(1.0, 1e-5)], key=path).join(["a"], 1.0)
        assert path.stat().st_mode & 0o777 == 0o600
        assert len(pp.Ledger.open(url, key=str(path)).members(["a"])) == 1

    def test_a_variable_has_the_key_or_its_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "key"
        path.write_text(KEY.hex())
        for value in (KEY.hex(), str(path)):
            monkeypatch.setenv(keys.VARIABLE, value)
            assert keys.required(keys.found(None)).keyed(["a"]) == keys.Key(KEY).keyed(["a"])

    def test_a_new_ledger_makes_the_file_that_a_variable_names(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, url = tmp_path / "key", f"sqlite:///{tmp_path / 'purses.db'}"
        monkeypatch.setenv(keys.VARIABLE, str(path))
        pp.Ledger.create(url, [(1.0, 1e-5)]).join(["a"], 1.0)
        assert len(pp.Ledger.open(url, key=path).members(["a"])) == 1
        monkeypatch.setenv(keys.VARIABLE, KEY.hex())  # a key itself names no file
        pp.Ledger.create(f"sqlite:///{tmp_path / 'others.db'}", [(1.0, 1e-5)])
        assert sorted(each.name for each in tmp_path.iterdir() if each.suffix != ".db") == ["key"]

    def test_a_wrong_key_is_told_at_once(self, ledger: pp.Ledger) -> None:
        with pytest.raises(pp.InvalidInput, match="not that of the ledger"):
            pp.Ledger.open(str(ledger._database), key=bytes(32))

    def test_without_the_key_it_verifies_and_names_nobody(
        self, ledger: pp.Ledger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger.join(["a"], 1.0)
        monkeypatch.delenv(keys.VARIABLE, raising=False)
        blind = pp.Ledger.open(str(ledger._database))
        assert blind.verify().sound
        for use in (blind.members, blind.withdraw, lambda ids: blind.history(ids[0])):
            with pytest.raises(pp.InvalidInput, match="PRIVYPURSE_LEDGER_KEY"):
                use(["a"])

    @pytest.mark.parametrize("content", ["", "xyz", "00" * 31, "ü"])
    def test_a_file_that_holds_no_key_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "key").write_text(content)
        with pytest.raises(pp.InvalidInput, match="key"):
            keys.found(tmp_path / "key")
        with pytest.raises(pp.InvalidInput, match="cannot be read"):
            keys.found(tmp_path / "nothing")

    def test_two_keys_give_two_hashes(self) -> None:
        assert keys.Key(KEY).keyed(["a"]) != keys.Key(bytes(32)).keyed(["a"])


def test_other_units_and_adversaries_are_refused(ledger: pp.Ledger) -> None:
    ledger.require_terms(adversary="server")
    with pytest.raises(pp.InvalidInput, match="adversary is 'public'"):
        ledger.require_terms(adversary="public")
    with pytest.raises(pp.InvalidInput, match="unit is 'record'"):
        ledger.require_terms(unit="record", adversary="server")
