"""The one public object between a table and a model: which columns go in and how, and what is to be learned.

It is made from a configuration, never fitted, so it may leave the house with the model. ``encoder.json`` holds all of
it in plain numbers and words: a program without privypurse can apply it (docs/tables.md).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np

from privypurse.datasets import targets
from privypurse.datasets.cells import column_of, words
from privypurse.datasets.encoding import KINDS, Encoding, Features
from privypurse.datasets.targets import Target
from privypurse.errors import InvalidInput

FORMAT, VERSION = "privypurse encoder", 1
_KEYS = ("format", "version", "missing", "columns", "features", "target")


@dataclass(frozen=True)
class Encoder:
    """Columns → float32 features, and the target, by public constants alone.

    Guarantee: each row of `encode` and `targets` follows from that row's cells and from these constants, from no
    other row; a cell that cannot be read is a missing value, never an error.
    """

    columns: Mapping[str, Encoding]
    target: Target | None = None
    missing: tuple[str, ...] = ()
    """Texts that mean that there is nothing, beside an empty cell: "NA", "?"."""

    def __post_init__(self) -> None:
        if not self.columns:
            raise InvalidInput("an encoder needs at least one column")
        object.__setattr__(self, "columns", dict(self.columns))
        object.__setattr__(self, "missing", words(self.missing, "missing"))
        seen = set(self.columns) & set(() if self.target is None else self.target.columns)
        if seen:
            raise InvalidInput(f"features holds {min(seen)!r}, which is what is to be learned; take it out")

    @property
    def features(self) -> list[str]:
        """The name of each number that goes into the model, in their order."""
        return [name for column, how in self.columns.items() for name in how.names(column)]

    @property
    def width(self) -> int:
        return len(self.features)

    def encode(self, table: Mapping[str, Any]) -> Features:
        """float32[n, width]. ``table`` gives columns by name: a dictionary, or a frame of pandas, polars or Arrow."""
        parts = [how.encode(column_of(table, name), self.missing) for name, how in self.columns.items()]
        if len({part.shape[0] for part in parts}) > 1:
            lengths = ", ".join(f"{name} {part.shape[0]:,}" for name, part in zip(self.columns, parts, strict=True))
            raise InvalidInput(f"the columns have different lengths ({lengths}); give one cell for each record")
        return np.concatenate(parts, axis=1)

    def targets(self, table: Mapping[str, Any]) -> Any:
        """What is to be learned of each row, as the target's own ``encode`` says."""
        if self.target is None:
            raise InvalidInput("this encoder was made without a target; give it one")
        return self.target.encode(table, self.missing)

    def to_json(self) -> str:
        """The content of ``encoder.json``; every field is written out, defaults too."""
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "missing": list(self.missing),
            "columns": [{"name": name, "kind": how.kind, **_plain(how)} for name, how in self.columns.items()],
            "features": self.features,
            "target": None if self.target is None else {"kind": self.target.kind, **_plain(self.target)},
        }
        return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Encoder:
        """What `to_json` wrote; anything else is an error that names what is wrong."""
        try:
            whole = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"this is no encoder.json: {error}") from None
        if not isinstance(whole, dict) or whole.get("format") != FORMAT:
            raise InvalidInput(f'this is no encoder.json: its "format" is not {FORMAT!r}')
        if whole.get("version") != VERSION:
            raise InvalidInput(f"this encoder has version {whole.get('version')!r}, this release knows {VERSION}")
        _require_keys(whole, _KEYS, "encoder.json")
        named = [_named(each) for each in _converted(whole["columns"], list[dict[str, Any]], "columns")]
        if len({name for name, _ in named}) < len(named):
            raise InvalidInput("encoder.json has two columns of the same name")
        target = whole["target"]
        made = cls(
            dict(named),
            None if target is None else cast(Target, _of_kind(targets.KINDS, target, "target")),
            _converted(whole["missing"], tuple[str, ...], "missing"),
        )
        if whole["features"] != made.features:
            raise InvalidInput("features of encoder.json are not those that its columns make; it was changed")
        return made


def _plain(made: Any) -> dict[str, Any]:
    return cast(dict[str, Any], msgspec.to_builtins(dataclasses.asdict(made)))


def _named(given: dict[str, Any]) -> tuple[str, Encoding]:
    name = _converted(given.get("name"), str, "the name of a column")
    rest = {key: each for key, each in given.items() if key != "name"}
    return name, cast(Encoding, _of_kind(KINDS, rest, f"column {name!r}"))


def _of_kind(kinds: Mapping[str, type[Any]], given: Any, place: str) -> Any:
    """The object of its kind, all of whose fields have to be there."""
    kind = given.get("kind") if isinstance(given, dict) else None
    if kind not in list(kinds):
        raise InvalidInput(f"{place} of encoder.json has the kind {kind!r}; there are {', '.join(kinds)}")
    fields = [each.name for each in dataclasses.fields(kinds[kind])]
    _require_keys(given, ["kind", *fields], f"{place} of encoder.json")
    return _converted({name: given[name] for name in fields}, kinds[kind], place)


def _converted(given: Any, kind: Any, place: str) -> Any:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{place} of encoder.json cannot be read: {error}") from None


def _require_keys(given: dict[str, Any], keys: Any, place: str) -> None:
    wrong = sorted(set(given) ^ set(keys))
    if wrong:
        raise InvalidInput(f"{place} has to have exactly the keys {', '.join(keys)}; see {wrong[0]!r}")
