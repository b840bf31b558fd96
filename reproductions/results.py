"""The file of a table's results: one line of JSON for each training, appended as they come."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import privypurse as pp
from reproductions.choice import Choice, Job
from reproductions.specs import Spec


def versions(device: torch.device) -> dict[str, str]:
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {
        "privypurse": pp.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": where,
    }


def path_of(spec: Spec, folder: Path) -> Path:
    return folder / f"{spec.name}.jsonl"


def append(path: Path, job: Job, scores: Mapping[str, float], said: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({**job.plain(), "accuracy": dict(scores), **said}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines; the last may have been cut off."""
    lines = []
    for text in path.read_text().splitlines() if path.is_file() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def key_of(line: Mapping[str, Any]) -> str:
    return json.dumps({name: line[name] for name in ("purpose", "method", "settings", "seed")}, sort_keys=True)


def choice_of(spec: Spec, lines: list[dict[str, Any]]) -> Choice:
    return Choice(spec, {key_of(line): line["accuracy"] for line in lines if line["purpose"] == "choice"})
