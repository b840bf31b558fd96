"""Plans as JSON: the levels once, everybody's level in one compressed string, and who they are as keyed digests."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from privypurse._storage import digest_of, replace_text
from privypurse.arrays import AnyArray
from privypurse.budgets.person_ids import KeyedIds, Seal
from privypurse.errors import InvalidInput
from privypurse.plans import stop_rules
from privypurse.plans.level_table import LevelTable
from privypurse.plans.planned_training import PlannedTraining
from privypurse.plans.promise import Promise
from privypurse.plans.training_shape import TrainingShape
from privypurse.plans.under_ledger import PlannedUnderLedger

FORMAT = "privypurse-plan"
VERSIONS = (1, 2, 3)
"""1 holds for an order of rows; 2 knows people or rows: a reader of 1 must not apply it by row number; 3 was made
with a ledger: a reader of 2 must not train by it without."""

P = TypeVar("P", bound=PlannedTraining)


def dumps(plan: PlannedTraining) -> str:
    """The plan as JSON text. Floats are written so that they read back to the same bits."""
    content = _content(plan)
    return json.dumps({**content, "sha256": digest_of(content)}, ensure_ascii=False, indent=1) + "\n"


def digest(plan: PlannedTraining) -> str:
    """A fingerprint: equal plans have equal ones.

    Keys are made anew whenever a plan is, and are no part of it. With ids, neither is the order of records: a run
    that goes on with the same people's rows in another order is the same run (rule 13).
    """
    content = _content(plan)
    content.pop("rows", None)
    content["promise"] = {"protects": plan.promise.value, "text": plan.promise.text}  # whatever else is said of it
    if plan.keyed_ids is not None:
        content.update(owner=None, people={"mark": plan.keyed_ids.mark, "one_each": plan.keyed_ids.one_each})
    return digest_of({**content, "version": 1})


def _content(plan: PlannedTraining) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": 3 if plan.ledger is not None else 1 if plan.keyed_ids is None and plan.seal is None else 2,
        "method": plan.method,
        "accountant": plan.accountant,
        "promise": {"protects": plan.promise.value, "text": plan.promise_text},
        "shape": {
            "steps": plan.steps,
            "batch_size": plan.batch_size,
            "clip_norm": plan.clip_norm,
            "noise_multiplier": plan.noise_multiplier,
            # Named where there are any: plans without stay what they were, to the last bit.
            **({"extra_steps": plan.shape.extra_steps} if plan.shape.extra_steps else {}),
            **({"stop": stop_rules.to_json(plan.shape.stop)} if plan.shape.stop else {}),
            **({} if plan.shape.at_most is None else {"at_most": plan.shape.at_most}),
        },
        "notes": list(plan.notes),
        "levels": {name: column.tolist() for name, column in vars(plan.levels).items()},
        "level_of": _packed(plan.level_of),
        "owner": None if plan.owner is None or _one_after_another(plan) else _packed(plan.owner),
        **({} if plan.keyed_ids is None else {"people": _people(plan.keyed_ids)}),
        **({} if plan.ledger is None else {"ledger": _ledger(plan.ledger)}),
        **({} if plan.seal is None else {"rows": {"key": plan.seal.key.hex(), "digest": plan.seal.digest.hex()}}),
    }


def _one_after_another(plan: PlannedTraining) -> bool:
    """Whether each person has one record, in the order of people: then nothing needs to be said of it."""
    return plan.keyed_ids is not None and np.array_equal(plan.owner, np.arange(plan.people))  # type: ignore[arg-type]


def _people(keyed_ids: KeyedIds) -> dict[str, Any]:
    return {
        "key": keyed_ids.key.hex(),
        "one_each": keyed_ids.one_each,
        "mark": keyed_ids.mark,
        "digests": _base85(keyed_ids.digests.astype("<u8").tobytes()),  # they are random: nothing would compress them
    }


def _ledger(ledger: PlannedUnderLedger) -> dict[str, Any]:
    smallest = np.min_scalar_type(int(ledger.numbers.max()))
    return {**vars(ledger), "numbers": _packed(ledger.numbers.astype(smallest))}


def _under_ledger(content: dict[str, Any] | None) -> PlannedUnderLedger | None:
    if content is None:
        return None
    return PlannedUnderLedger(**{**content, "numbers": _unpacked(content["numbers"]).astype(np.int64)})


def _keyed_ids(content: dict[str, Any] | None) -> KeyedIds | None:
    if content is None:
        return None
    digests = np.frombuffer(_from_base85(content["digests"]), dtype="<u8")
    return KeyedIds(bytes.fromhex(content["key"]), digests, bool(content["one_each"]), str(content["mark"]))


def loads(text: str, kind: type[P], name: str = "plan") -> P:
    """The plan that `dumps` wrote, as an object of this kind."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{name} is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidInput(f"{name} is not a plan of Privy Purse (its format is not {FORMAT!r})")
    if content.get("version") not in VERSIONS:
        raise InvalidInput(f"{name} has version {content.get('version')!r}; this release reads versions 1 to 3")
    digest = content.pop("sha256", None)
    if digest != digest_of(content):
        raise InvalidInput(
            f"{name} was altered or damaged after it was saved: its checksum does not fit; make it anew"
        )
    try:
        if content["promise"]["protects"] == Promise.PART:
            raise InvalidInput("it is one round of a larger whole, which promises nothing by itself; make a plan")
        keyed_ids, rows = _keyed_ids(content.get("people")), content.get("rows")
        level_of = _unpacked(content["level_of"])
        owner = None if content["owner"] is None else _unpacked(content["owner"])
        return kind(
            method=content["method"],
            accountant=content["accountant"],
            promise=content["promise"]["protects"],
            shape=_shape(content["shape"]),
            levels=LevelTable(**content["levels"]),
            level_of=level_of,
            owner=np.arange(level_of.size) if owner is None and keyed_ids is not None else owner,
            notes=tuple(content["notes"]),
            keyed_ids=keyed_ids,
            ledger=_under_ledger(content.get("ledger")),
            seal=None if rows is None else Seal(bytes.fromhex(rows["key"]), bytes.fromhex(rows["digest"])),
        )
    except InvalidInput as error:
        raise InvalidInput(f"{name} cannot be read: {error}") from None
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise InvalidInput(f"{name} cannot be read: {error!r}") from None


def _shape(content: dict[str, Any]) -> TrainingShape:
    stop = content.get("stop")
    return TrainingShape(**{**content, "stop": None if stop is None else stop_rules.from_json(stop)})


def save(plan: PlannedTraining, path: Path) -> None:
    """Write the file whole, so that only its owner may read it: it is as sensitive as the budgets."""
    try:
        replace_text(path, dumps(plan))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; name a file in an existing folder") from None


def load(path: Path, kind: type[P]) -> P:
    """The plan in a file; an altered or damaged one is an error."""
    if not path.exists():
        raise InvalidInput(f"{path} does not exist")
    try:
        return loads(path.read_text(encoding="utf-8"), kind, str(path))
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not a plan: it is not text") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


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


_ALPHABET = np.frombuffer(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~", dtype=np.uint8
)
_POWERS = 85 ** np.arange(4, -1, -1, dtype=np.uint64)


def _base85(whole: bytes) -> str:
    """As `base64.b85encode` for whole words of four bytes, a million at once: a quarter longer, base64 a third."""
    words = np.frombuffer(whole, dtype=">u4").astype(np.uint64)
    letters: AnyArray = _ALPHABET[(words[:, None] // _POWERS) % np.uint64(85)]
    return letters.tobytes().decode("ascii")


def _from_base85(text: str) -> bytes:
    value = np.full(256, 2**32, dtype=np.uint64)
    value[_ALPHABET] = np.arange(85, dtype=np.uint64)
    words = value[np.frombuffer(text.encode("ascii"), dtype=np.uint8)].reshape(-1, 5) @ _POWERS
    if words.size and int(words.max()) >= 2**32:
        raise ValueError("digests are no base85")
    return words.astype(">u4").tobytes()
