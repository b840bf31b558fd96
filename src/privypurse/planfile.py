"""Plans as JSON: the levels once, and everybody's level in one compressed string."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from privypurse import stopping
from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput
from privypurse.plans import LevelTable, Plan, TrainingShape

FORMAT = "privypurse-plan"
VERSION = 1


def dumps(plan: Plan) -> str:
    """The plan as JSON text. Floats are written so that they read back to the same bits."""
    content = _content(plan)
    return json.dumps({**content, "sha256": _digest(content)}, ensure_ascii=False, indent=1) + "\n"


def digest(plan: Plan) -> str:
    """A fingerprint: equal plans have equal ones."""
    return _digest(_content(plan))


def _content(plan: Plan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "method": plan.method,
        "accountant": plan.accountant,
        "promise": {"protects": plan.promise.value, "text": plan.promise.text},
        "shape": {
            "steps": plan.steps,
            "batch_size": plan.batch_size,
            "clip_norm": plan.clip_norm,
            "noise_multiplier": plan.noise_multiplier,
            # Named where there are any: plans without stay what they were, to the last bit.
            **({"extra_steps": plan.shape.extra_steps} if plan.shape.extra_steps else {}),
            **({"stop": stopping.to_json(plan.shape.stop)} if plan.shape.stop else {}),
        },
        "notes": list(plan.notes),
        "levels": {
            "epsilon": plan.levels.epsilon.tolist(),
            "delta": plan.levels.delta.tolist(),
            "rate": plan.levels.rate.tolist(),
            "clip_norm": plan.levels.clip_norm.tolist(),
            "capped": plan.levels.capped.tolist(),
        },
        "level_of": _packed(plan.level_of),
        "owner": None if plan.owner is None else _packed(plan.owner),
    }


def loads(text: str, name: str = "plan") -> Plan:
    """The plan that `dumps` wrote."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{name} is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidInput(f"{name} is not a plan of Privy Purse (its format is not {FORMAT!r})")
    if content.get("version") != VERSION:
        raise InvalidInput(f"{name} has version {content.get('version')!r}; this release reads version {VERSION}")
    digest = content.pop("sha256", None)
    if digest != _digest(content):
        raise InvalidInput(
            f"{name} was altered or damaged after it was saved: its checksum does not fit; make it anew"
        )
    try:
        return Plan(
            method=content["method"],
            accountant=content["accountant"],
            promise=content["promise"]["protects"],
            shape=_shape(content["shape"]),
            levels=LevelTable(**content["levels"]),
            level_of=_unpacked(content["level_of"]),
            owner=None if content["owner"] is None else _unpacked(content["owner"]),
            notes=tuple(content["notes"]),
        )
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise InvalidInput(f"{name} cannot be read: {error!r}") from None


def _shape(content: dict[str, Any]) -> TrainingShape:
    stop = content.get("stop")
    return TrainingShape(**{**content, "stop": None if stop is None else stopping.from_json(stop)})


def save(plan: Plan, path: Path) -> None:
    """Write the file so that only its owner may read it: it is as sensitive as the budgets."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(dumps(plan))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; name a file in an existing folder") from None


def load(path: Path) -> Plan:
    if not path.exists():
        raise InvalidInput(f"{path} does not exist")
    try:
        return loads(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a plan: it is not text") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _packed(array: AnyArray) -> dict[str, Any]:
    little = array.astype(array.dtype.newbyteorder("<"))
    return {
        "dtype": little.dtype.str,
        "size": int(array.size),
        "zlib": base64.b64encode(zlib.compress(little.tobytes(), 6)).decode("ascii"),
    }


def _unpacked(packed: dict[str, Any]) -> AnyArray:
    if packed["dtype"] not in ("|u1", "<u2", "<u4", "<u8"):
        raise ValueError(f"unknown index type {packed['dtype']!r}")
    array = np.frombuffer(zlib.decompress(base64.b64decode(packed["zlib"])), dtype=packed["dtype"])
    if array.size != packed["size"]:
        raise ValueError(f"{array.size} entries where {packed['size']} were promised")
    return array
