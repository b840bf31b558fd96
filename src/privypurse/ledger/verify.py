"""Everything recomputed from raw entries, by other code than that which charges.

This module imports nothing of the ledger but NumPy and SQLAlchemy (a test says so): what is stored is its only common
ground with the rest. Sums are kept in two halves of 32 bits, which never overflow and never stop at a ceiling.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

_PLACES = 4096
_NOT_LISTED, _NO_CHARGE = 0xFFFF, 0xFFFE
_FREE = 1 << 61  # limits and charges from here on: nothing limits, and nothing pays
_LOW = (1 << 32) - 1
_MOST_TOLD = 20
_NEVER = (1 << 63) - 1
_LEAVING = {"withdraw": 1, "forget": 2, "freeze": 4}
_FROZEN = 4
_Mark = Callable[[bytes], bytes]


@dataclass
class Verified:
    """What a check of the whole ledger found; nothing is wrong where ``problems`` is empty."""

    entries: int = 0
    people: int = 0
    runs: int = 0
    head: str = ""
    problems: list[str] = field(default_factory=list)
    """In words, without anybody's id; the first twenty."""

    @property
    def sound(self) -> bool:
        return not self.problems

    def complain(self, what: str) -> None:
        if len(self.problems) < _MOST_TOLD:
            self.problems.append(what)


@dataclass
class _Entry:
    seq: int
    time: int
    kind: str
    run: str | None
    meta: dict[str, Any]
    classes: bytes
    hash: bytes


class _Sums:
    """Exact sums of numbers up to 2^61, for each column and place."""

    def __init__(self, columns: int) -> None:
        self.high = np.zeros((columns, _PLACES), dtype=np.int64)
        self.low = np.zeros((columns, _PLACES), dtype=np.int64)

    def add(self, charge: Any, sign: int = 1) -> None:
        self.high += sign * (charge >> 32)
        self.low += sign * (charge & _LOW)

    def exceed(self, other: _Sums | None, limit: Any) -> Any:
        """Where self (and the other) is above the limit."""
        high = self.high + (0 if other is None else other.high)
        low = self.low + (0 if other is None else other.low)
        high, low = high + (low >> 32), low & _LOW
        return (high > limit >> 32) | ((high == limit >> 32) & (low > limit & _LOW))

    def clipped(self) -> Any:
        """As 64-bit numbers, at most 2^61."""
        high, low = self.high + (self.low >> 32), self.low & _LOW
        return np.where(high >= 1 << 29, _FREE, (np.minimum(high, 1 << 29) << 32) + low)


def verified(connection: Connection, mark: _Mark | None = None) -> Verified:
    """Check chain, people, terms, every person's sums after every entry, and snapshots.

    ``mark`` is what makes the ledger's mark of some bytes; without it the marks of snapshots are not looked at.
    """
    report = Verified()
    try:
        _check(connection, report, mark)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
        report.complain(f"there is something that cannot be read: {type(error).__name__}: {error}")
    return report


def _check(connection: Connection, report: Verified, mark: _Mark | None) -> None:
    entries = _chain(connection, report)
    if not entries:
        report.complain("there is no entry")
        return
    terms = _terms(connection, entries[0], report)
    _people(connection, entries, report)
    _runs(entries, report)
    _begun(entries, report)
    if terms is not None:
        limits = _limits(terms, report)
        by_seq = {entry.seq: entry for entry in entries}
        for entry in entries:
            if entry.kind in ("reserve", "charge"):
                _caps(entry, terms, limits.shape[1], report)
        blocks = -(-report.people // _PLACES)
        stray = "SELECT count(*) FROM {} WHERE number NOT BETWEEN 0 AND :last OR entry NOT IN (SELECT seq FROM entry)"
        for table in ("block", "snapshot"):
            if connection.execute(sa.text(stray.format(table)), {"last": blocks - 1}).scalar():
                report.complain(f"the table {table} has rows of nobody, or of no entry")
        for number in range(blocks):
            _Block(number, limits, report).replay(connection, by_seq, mark)


def _chain(connection: Connection, report: Verified) -> list[_Entry]:
    previous, last_seq, last_time = bytes(32), 0, 0
    query = "SELECT seq, time, kind, run, meta, classes, previous, hash FROM entry ORDER BY seq"
    entries = []
    for seq, time, kind, run, meta, classes, before, hashed in connection.execute(sa.text(query)).all():
        digest = hashlib.sha256()
        blocks = "SELECT number, payload FROM block WHERE entry = :seq ORDER BY number"
        for number, payload in connection.execute(sa.text(blocks), {"seq": seq}):
            digest.update(struct.pack(">qq", number, len(payload)) + bytes(payload))
        text = json.dumps([seq, time, kind, run, meta], separators=(",", ":"))
        parts = [hashlib.sha256(part).digest() for part in (text.encode("ascii"), bytes(classes or b""))]
        own = hashlib.sha256(b"".join([previous, *parts, digest.digest()])).digest()
        if bytes(before) != previous or bytes(hashed) != own:
            report.complain(f"entry {seq}: its hash is not that of what it holds and of the entry before")
        if seq != last_seq + 1 and not (kind == "recover" and seq > last_seq):
            report.complain(f"entry {seq} follows entry {last_seq}")
        if time < last_time:
            report.complain(f"entry {seq} is dated earlier than the one before")
        previous, last_seq, last_time = bytes(hashed), seq, time
        entries.append(_Entry(seq, time, kind, run, json.loads(meta), bytes(classes or b""), previous))
    report.entries, report.head = len(entries), previous.hex()
    return entries


def _terms(connection: Connection, first: _Entry, report: Verified) -> dict[str, Any] | None:
    row = connection.execute(sa.text("SELECT id, unit, adversary, terms FROM ledger")).all()
    if len(row) != 1 or first.kind != "create":
        report.complain("the ledger has no terms, or more than one, or its first entry does not state them")
        return None
    name, unit, adversary, terms = row[0]
    same = {"id": name, "unit": unit, "adversary": adversary} == {k: v for k, v in first.meta.items() if k != "terms"}
    if not same or terms != json.dumps(first.meta["terms"], sort_keys=True, separators=(",", ":")):
        report.complain("the ledger's terms are not those of its first entry")
    found: dict[str, Any] = first.meta["terms"]
    return found


def _limits(terms: dict[str, Any], report: Verified) -> Any:
    """[rung, column]: what sums may reach, after checking that each limit is one its (ε, δ) follows from."""
    rungs, share = terms["rungs"], Decimal(terms["set_apart"])
    columns = len(rungs) + (2 if share else 0)
    limits = np.full((256, columns), 0, dtype=np.int64)
    for j, (epsilon, delta, order, limit) in enumerate(rungs):
        with localcontext() as context:
            context.prec = 60
            a, e, d = Decimal(order), Decimal(epsilon) * (1 - share), Decimal(delta) * (1 - share)
            # Canonne, Kamath & Steinke (2020, arXiv 2004.00010), Proposition 12, solved for the divergence.
            held = e - ((a - 1) / a).ln() + (d.ln() + a.ln()) / (a - 1)
            if not 0 < limit <= held * 2**40:
                report.complain(f"rung {j}: its limit is above what (ε, δ) = ({epsilon:g}, {delta:g}) holds")
            limits[j, :] = _FREE
            limits[j, j : len(rungs)] = [rung[3] for rung in rungs[j:]]
            if share:
                limits[j, -2] = int(share * Decimal(epsilon) * 2**40)
                limits[j, -1] = int(share * min(Decimal(rung[1]) for rung in rungs[j:]) * 2**60)
    return limits


def _people(connection: Connection, entries: list[_Entry], report: Verified) -> None:
    keyed = connection.execute(sa.text("SELECT number, keyed FROM person ORDER BY number")).all()
    report.people = len(keyed)
    if [number for number, _ in keyed] != list(range(len(keyed))):
        report.complain("the numbers of people have gaps")
        return
    begun = 0
    for entry in entries:
        if (new := entry.meta.get("new")) is None:
            continue
        digest = hashlib.sha256(b"".join(bytes(one) for _, one in keyed[begun : begun + new["count"]]))
        if entry.kind != "join" or new["first"] != begun or digest.hexdigest() != new["keyed"]:
            report.complain(f"entry {entry.seq}: the people who joined with it are not those in the list")
        begun += new["count"]
    if begun != len(keyed):
        report.complain("there are people whom no entry took in")


def _runs(entries: list[_Entry], report: Verified) -> None:
    """One reservation and at most one settlement a run, in this order."""
    seen: dict[str | None, list[str]] = {}
    for entry in entries:
        if entry.kind in ("reserve", "settle", "charge"):
            seen.setdefault(entry.run, []).append(entry.kind)
    report.runs = len(seen)
    for run, kinds in seen.items():
        if run is None or kinds not in (["reserve"], ["reserve", "settle"], ["charge"]):
            report.complain(f"run {run!r} has the entries {', '.join(kinds)}")


def _begun(entries: list[_Entry], report: Verified) -> None:
    """Steps are handed out while a run is open; nobody is handed what somebody before them was."""
    open_runs: set[str | None] = set()
    latest: dict[str, tuple[str, int, int]] = {}
    for entry in entries:
        if entry.kind == "reserve":
            open_runs.add(entry.run)
        elif entry.kind == "settle":
            open_runs.discard(entry.run)
        elif entry.kind == "begin":
            run, holder, since, count = (entry.meta[name] for name in ("run", "holder", "since", "count"))
            before, begun, handed = latest.get(run, ("", 0, 0))
            follows = since == handed or (holder == before and since == begun)
            if run not in open_runs or not follows or count < since:
                report.complain(f"entry {entry.seq}: the steps it hands out do not follow those handed out before")
            latest[run] = holder, since, count


def _caps(entry: _Entry, terms: dict[str, Any], columns: int, report: Verified) -> None:
    """At one's own order a cap is what ``at_most`` costs there, or the whole limit; else the most of a row within.

    What was released before is charged beyond a limit too, so there the whole limit stands for all rows.
    """
    at_most, table = entry.meta["at_most"], np.frombuffer(entry.classes, dtype="<i8").reshape(-1, columns)
    for k, (epsilon, delta, order, limit) in enumerate(terms["rungs"]):
        own = entry.meta["caps"][k][k]
        counts = (table[:, k] <= own) | (bool(entry.meta.get("past")) and own == limit)
        most = table[counts].max(axis=0, initial=0).tolist()
        if entry.meta["caps"][k] != [own if column == k else most[column] for column in range(columns)]:
            report.complain(f"entry {entry.seq}: the caps at rung {k} are not what its charges make them")
        wanted = float(limit)
        if at_most is not None and at_most < epsilon:
            if delta < 1e-10 or at_most > 500:  # where this formula has no digits left
                continue
            wanted = min(wanted, order * _gaussian_mu(at_most, delta) ** 2 / 2 * 2**40)
        if not abs(own - wanted) <= 1e-4 * wanted + 2:
            report.complain(f"entry {entry.seq}: the cap at rung {k} is {own}, not {wanted:.0f}")


def _gaussian_mu(epsilon: float, delta: float) -> float:
    """The μ with Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ) = δ (Balle & Wang 2018, arXiv 1805.06530, Theorem 8)."""

    def reached(mu: float) -> float:
        first, second = (math.erfc(-(side * mu / 2 - epsilon / mu) / math.sqrt(2)) / 2 for side in (1, -1))
        return first - (math.exp(epsilon) * second if second else 0.0)

    low, high = 1e-12, math.sqrt(2 * epsilon) + 20
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) <= delta else (low, middle)
    return low


class _Block:
    """4,096 people, from the first entry to the last."""

    def __init__(self, number: int, limits: Any, report: Verified) -> None:
        self.number, self.limits, self.report = number, limits, report
        self.columns = limits.shape[1]
        self.rung = np.full(_PLACES, 255)
        self.status = np.zeros(_PLACES, dtype=np.uint8)
        self.until = np.full(_PLACES, _NEVER)
        self.spent, self.reserved, self.capped = (_Sums(self.columns) for _ in range(3))
        self.open: dict[str | None, tuple[Any, Any]] = {}

    def replay(self, connection: Connection, entries: dict[int, _Entry], mark: _Mark | None) -> None:
        kept = sa.text("SELECT entry, payload, mark FROM snapshot WHERE number = :number")
        snapshot = connection.execute(kept, {"number": self.number}).first()
        if snapshot is not None and mark is not None and snapshot.entry in entries:
            what = b"%d %d " % (self.number, snapshot.entry) + entries[snapshot.entry].hash + bytes(snapshot.payload)
            if mark(what) != bytes(snapshot.mark):
                self.report.complain(f"block {self.number}: its snapshot does not bear the ledger's mark")
        query = sa.text("SELECT entry, payload FROM block WHERE number = :number ORDER BY entry")
        for seq, payload in connection.execute(query, {"number": self.number}).all():
            if snapshot is not None and seq > snapshot.entry:
                self._compare(bytes(snapshot.payload))
                snapshot = None
            listed, values = self._decoded(bytes(payload))
            self._apply(entries[seq], listed, values)
        if snapshot is not None:
            self._compare(bytes(snapshot.payload))

    def _decoded(self, payload: bytes) -> tuple[Any, Any]:
        """Who is listed (a mask), and everybody's values."""
        words = np.frombuffer(payload, dtype="<u2").astype(np.int64)
        columns, listed = int(words[0]), int(words[1])
        values = np.full((columns, _PLACES), _NOT_LISTED)
        if listed == _NOT_LISTED:
            values[:] = words[2:].reshape(columns, _PLACES)
        else:
            values[:, words[2 : 2 + listed]] = words[2 + listed :].reshape(columns, listed)
        return values[0] != _NOT_LISTED, values

    def _apply(self, entry: _Entry, listed: Any, values: Any) -> None:
        match entry.kind:
            case "join" | "consent":
                self.rung[listed] = values[0][listed]
                self.status[listed] &= _FROZEN
                self.until[listed] = entry.meta.get("valid_until", _NEVER)
            case "withdraw" | "forget" | "freeze":
                self.status[listed] |= _LEAVING[entry.kind]
            case "reserve" | "charge":
                self._take(entry, listed, self._charges(entry, listed, values))
            case "settle":
                self._settle(entry, listed, self._charges(entry, listed, values))
            case _:
                self._wrong(entry, "has people, which its kind has not")

    def _charges(self, entry: _Entry, listed: Any, values: Any) -> Any:
        """[columns, places]: what everybody pays in this entry."""
        table = np.frombuffer(entry.classes, dtype="<i8")
        if "lengths" in entry.meta:
            tables = np.split(table, np.cumsum(entry.meta["lengths"])[:-1])
        else:
            tables = list(table.reshape(-1, self.columns).T)
            values = np.repeat(values[:1], self.columns, axis=0)
        charges = np.zeros((self.columns, _PLACES), dtype=np.int64)
        for column, own in enumerate(tables):
            pays = listed & (values[column] != _NO_CHARGE)
            if (values[column][pays] >= own.size).any() or (own < 0).any() or (own > _FREE).any():
                self._wrong(entry, "has a class without a charge, or a charge that is none")
                return charges
            charges[column, pays] = own[values[column][pays]]
        return charges

    def _take(self, entry: _Entry, listed: Any, charges: Any) -> None:
        pays = (charges > 0).any(axis=0)
        caps = np.zeros((256, self.columns), dtype=np.int64)
        stated = np.array(entry.meta["caps"], dtype=np.int64)
        caps[: len(stated)] = stated
        own_caps, limits = caps[self.rung].T, self.limits[self.rung].T
        self.capped.add(np.where(listed, own_caps, 0))
        if entry.meta.get("past"):
            self._take_past(entry, listed, charges)
            return
        if (pays & ((self.status != 0) | (self.rung == 255) | (self.until <= entry.time))).any():
            self._wrong(entry, "charges somebody who has not joined, has left, or is frozen")
        if (charges > own_caps).any():
            self._wrong(entry, "charges somebody more than its public cap")
        self.reserved.add(charges)
        limited = pays & (limits < _FREE)
        if (limited & self.spent.exceed(self.reserved, limits)).any():
            self._wrong(entry, "takes somebody beyond their purse")
        if entry.kind == "charge":
            self.reserved.add(charges, -1)
            self.spent.add(charges)
        else:
            self.open[entry.run] = listed, charges

    def _take_past(self, entry: _Entry, listed: Any, charges: Any) -> None:
        """What was released before the ledger knew of it: nobody is asked whether they could pay."""
        if entry.kind != "charge" or (listed & (self.rung == 255)).any():
            self._wrong(entry, "charges the past of somebody who has not joined, or reserves for it")
        if any((listed & held).any() for held, _ in self.open.values()):
            self._wrong(entry, "charges the past of somebody for whom a run is open")
        self.spent.add(charges)

    def _settle(self, entry: _Entry, listed: Any, charges: Any) -> None:
        before, held = self.open.pop(entry.run, (np.zeros_like(listed), np.zeros_like(charges)))
        if (before != listed).any() or (charges > held).any():
            self._wrong(entry, "settles for other people, or at more, than was reserved")
        self.reserved.add(held, -1)
        self.spent.add(charges)

    def _compare(self, payload: bytes) -> None:
        """A snapshot with everybody's rung, status, end and sums so far: byte by byte."""
        numbers = np.concatenate([self.until[None], self.spent.clipped(), self.capped.clipped()])
        whole = self.rung.astype(np.uint8).tobytes() + self.status.tobytes() + numbers.astype("<i8").tobytes()
        if payload != whole:
            self.report.complain(f"block {self.number}: its snapshot is not what the entries say")

    def _wrong(self, entry: _Entry, what: str) -> None:
        self.report.complain(f"entry {entry.seq} ({entry.kind}), block {self.number}: {what}")
