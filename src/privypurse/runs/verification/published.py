"""What a run shows to others: which of its files, and whether they say what the configuration asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from privypurse.datasets.encoder import Encoder
from privypurse.errors import InvalidInput
from privypurse.runs.config import RunConfig, Table
from privypurse.runs.export import ONNX, PT2
from privypurse.runs.folder import RunFolder
from privypurse.runs.measures import SHOWN
from privypurse.runs.predictor import ENCODER, NETWORK, PARAMETERS
from privypurse.runs.private_ranges import NAME as RANGES
from privypurse.runs.private_ranges import Released, settled
from privypurse.runs.verification.findings import Finding, compared, fits, left_open

_OF_TEST = ("test.json", "curves.svg")
PUBLISHED = (PARAMETERS, NETWORK, ENCODER, RANGES, ONNX, PT2, "facts.json", *_OF_TEST, "terms.json", "answer.json")
"""Every file that some run may show. All else follows from people without having been paid for (rule 6)."""


def strangers(folder: RunFolder) -> Iterator[str]:
    """Files that are listed as public, and that no run publishes."""
    for name, file in folder.files.items():
        if file.public and name not in PUBLISHED:
            yield f"{name} is listed as public, and follows from people: no run shows such a file"


def shown_wrongly(folder: RunFolder, config: RunConfig | None, seeded: bool) -> Iterator[str]:
    """Of a seeded run nothing is public; figures on people who were not charged are not either."""
    for name, file in folder.files.items():
        if file.public and seeded:
            yield f"{name} is listed as public, and whoever knows the seed can take its noise off"
        elif file.public and name in _OF_TEST and config is not None and _measured(config) not in SHOWN:
            yield f"{name} is listed as public, and was measured on people who were not charged"


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
