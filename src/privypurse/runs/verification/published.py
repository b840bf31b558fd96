"""What a run shows to others: which of its files, and whether these are what they are called and asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from privypurse.arrays import FloatArray
from privypurse.datasets.encoder import Encoder
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.queries.ranges import outer_grid
from privypurse.runs.config import RunConfig, Table
from privypurse.runs.estimated_columns import EstimatedCategories, EstimatedRange
from privypurse.runs.export import ONNX, PT2
from privypurse.runs.folder import PUBLIC_LIST, RunFolder
from privypurse.runs.measures import SHOWN
from privypurse.runs.plan_facts import who_is_charged
from privypurse.runs.predictor import ENCODER, NETWORK, PARAMETERS
from privypurse.runs.private_ranges import NAME as RANGES
from privypurse.runs.private_ranges import Released, settled
from privypurse.runs.verification.file_forms import is_onnx, is_pt2, is_svg
from privypurse.runs.verification.findings import Finding, compared, fits, left_open

_CURVES = "curves.svg"
_OF_TEST = ("test.json", _CURVES)
_OF_MODEL = (PARAMETERS, NETWORK, ENCODER, ONNX, PT2, "facts.json")
PUBLISHED = {
    "train": (*_OF_MODEL, RANGES, *_OF_TEST),
    "demo": _OF_MODEL,
    "federate": ("terms.json", "facts.json"),
    "query": ("answer.json",),
}
"""By what wrote a run, every file that it may show. All else follows from people, who did not pay for it (rule 6)."""
_ROUNDING = 1e-9


def strangers(folder: RunFolder) -> Iterator[str]:
    """Files that are listed as public, and that no such run publishes, or not in this form."""
    if folder.command not in PUBLISHED:
        return
    for name in (name for name, file in folder.files.items() if file.public):
        path = folder.path / name
        if name not in PUBLISHED[folder.command]:
            yield f"{name} is listed as public, and follows from people: no such run shows a file of that name"
        elif name in _FORMS and path.is_file() and not _FORMS[name](path):
            yield f"{name} is listed as public, and has not the form of what its name says"


def _is_ranges(file: Path) -> bool:
    """Whether nothing is in it but what people were asked for."""
    try:
        told = json.loads(file.read_text("utf-8"))
        return bool(Released.from_json(told).to_json() == told)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


_FORMS = {ONNX: is_onnx, PT2: is_pt2, _CURVES: is_svg, RANGES: _is_ranges}
"""Of files whose content the configuration does not say: how one is told from another file under their name."""


def shown_wrongly(folder: RunFolder, config: RunConfig | None, seeded: bool) -> Iterator[str]:
    """Of a seeded run nothing is public; figures on people who were not charged are not either."""
    for name, file in folder.files.items():
        if file.public and seeded:
            yield f"{name} is listed as public, and whoever knows the seed can take its noise off"
        elif file.public and name in _OF_TEST and config is not None and _measured(config) not in SHOWN:
            yield f"{name} is listed as public, and was measured on people who were not charged"
        elif file.public and name == RANGES and config is not None:
            yield from _other_ranges(folder, config)


def _other_ranges(folder: RunFolder, config: RunConfig) -> Iterator[str]:
    """ranges.json tells of what the configuration has asked for, and of nothing else."""
    if config.private_ranges is None or not isinstance(config.data, Table):
        yield f"{RANGES} is listed as public, and the configuration has nothing estimated"
        return
    told, asked = Released.from_json(_content(folder, RANGES) or {}), config.data.estimated
    if told.share != config.private_ranges.share:
        yield f"{RANGES} says share = {told.share}, the configuration {config.private_ranges.share}"
    for which, kind in ((told.ranges, EstimatedRange), (told.categories, EstimatedCategories)):
        if set(which) != {name for name, how in asked.items() if isinstance(how, kind)}:
            yield f"{RANGES} tells of other columns than the configuration has estimated"
    for name, (low, high) in told.ranges.items():
        how = asked.get(name)
        if isinstance(how, EstimatedRange) and not _on_grid((low, high), outer_grid(*how.within)):
            yield f"{RANGES} has an end of {name!r} that is none of the grid on which it was asked for"


def _on_grid(ends: tuple[float, float], grid: FloatArray) -> bool:
    """Up to how another machine rounds."""
    near = np.isclose(np.asarray(ends)[:, None], grid, rtol=_ROUNDING, atol=_ROUNDING * np.abs(grid).max())
    return bool(near.any(axis=1).all())


def charged_otherwise(folder: RunFolder, facts: Mapping[str, Any], plan: Plan | None, seeded: bool) -> Iterator[str]:
    """Whether the lists of a training run's files say that a ledger charges its people, and no file does; or not.

    Lists of earlier releases say nothing. A seeded run may go without the ledger of its plan.
    """
    if not folder.charged:
        return
    if folder.charged not in (who_is_charged(True), who_is_charged(False)):
        yield f"{PUBLIC_LIST} says of who is charged what no run says: {folder.charged!r}"
        return
    said = folder.charged == who_is_charged(True)
    found = {} if plan is None else {"plan.json": plan.ledger is not None}
    found |= {"facts.json": bool(facts["under_ledger"])} if "under_ledger" in facts else {}
    if PARAMETERS in folder.files and any(not file.public for file in folder.files.values()):  # it came to its end
        found["ledger.json"] = "ledger.json" in folder.files
    for name, under_ledger in found.items():
        if under_ledger != said and not (seeded and under_ledger and name != "ledger.json"):
            which = "a ledger" if under_ledger else "no ledger"
            yield f"{PUBLIC_LIST} says: {folder.charged.partition(',')[0]}; by {name} there is {which}"


def other_network(folder: RunFolder, config: RunConfig) -> Iterator[str]:
    """encoder.json and model.json follow from the configuration, and from ranges.json where people were asked."""
    encoder, found = _encoder(folder, config), _content(folder, NETWORK)
    asked = {"network": json.loads(msgspec.json.encode(config.model))}
    if encoder is not None:
        assert encoder.target is not None
        written = json.loads(encoder.to_json())
        asked |= {"shape": [len(written["features"])], "outputs": encoder.target.outputs}
        ended = PARAMETERS in folder.files
        if (ended or ENCODER in folder.files) and _content(folder, ENCODER) != written:
            yield f"{ENCODER} is not what the configuration makes of a table"
    for name, value in asked.items():
        if found is not None and found.get(name) != value:
            yield f"{NETWORK} says {name} = {found.get(name)}, the configuration {value}"


def of_test(folder: RunFolder, config: RunConfig | None, metrics: Mapping[str, Any]) -> Finding:
    """Whether both files tell the same; it is said where neither tells anything, or there is nothing to compare."""
    if differences := list(_other_figures(folder, config, metrics)):
        return compared("test", differences, "")
    if "test.json" in folder.files:
        return fits("test", "test.json says what metrics.json says")
    if metrics.get("test") is None:
        return fits("test", "no file tells of any: there is no test.json, and nothing in metrics.json")
    return left_open("test", "metrics.json tells of one, and such a run writes no test.json to compare it with")


def _other_figures(folder: RunFolder, config: RunConfig | None, metrics: Mapping[str, Any]) -> Iterator[str]:
    """test.json, which may be shown, says what metrics.json says, and of whose records."""
    test, told = _content(folder, "test.json"), metrics.get("test")
    if (test is None) != (told is None):
        if folder.command == "train":
            yield "of test.json and the test in metrics.json there is only one"
        return
    if test is None or told is None:
        return
    for name in ("measured", "about", "records", "accuracy", "loss"):
        if test.get(name) != told.get(name):
            yield f"test.json says {name} = {test.get(name)!r}, metrics.json {told.get(name)!r}"
    if "history" in test and test["history"] != metrics.get("history", {}).get("steps"):
        yield "test.json and metrics.json tell of another history"
    if config is not None and test.get("measured") != _measured(config):
        yield f"test.json says that it was measured on {test.get('measured')!r}, the configuration otherwise"


def _measured(config: RunConfig) -> str:
    return config.data.measured if isinstance(config.data, Table) else "public"


def _encoder(folder: RunFolder, config: RunConfig) -> Encoder | None:
    """By the configuration; None where the data are none of a table of one's own."""
    if not isinstance(config.data, Table):
        return None
    told = _content(folder, RANGES)
    if not config.data.estimated:
        return config.data.encoder
    if told is None:
        raise InvalidInput(f"run.json lists no {RANGES}, and columns of config.toml are estimated")
    return settled(config.data, Released.from_json(told)).encoder


def _content(folder: RunFolder, name: str) -> dict[str, Any] | None:
    if name not in folder.files:
        return None
    content = json.loads((folder.path / name).read_text("utf-8"))
    if not isinstance(content, dict):
        raise InvalidInput(f"{name} holds no names and values")
    return content
