"""The afternoon of a data team: the commands of docs/serving.md, run as they stand, and what they leave behind."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import privypurse as pp

pytestmark = [pytest.mark.docs, pytest.mark.needs("onnx")]

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
COMMANDS = ("init", "compare", "train", "predict", "export", "verify")


def commands_of(page: Path) -> str:
    return "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))


@pytest.fixture(scope="module")
def afternoon(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder after the whole page was run, and what was said."""
    folder = tmp_path_factory.mktemp("afternoon")
    script = f'set -eu\nprivypurse() {{ {sys.executable} -m privypurse.cli "$@"; }}\n' + commands_of(PAGE)
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def unlike(run: Path) -> list[str]:
    """What is not as run.json says, by hashlib alone: files that are missing, changed, or not listed."""
    listed = json.loads((run / "run.json").read_text(encoding="utf-8"))["files"]
    there = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    wrong = [
        name
        for name, file in listed.items()
        if name not in there or hashlib.sha256(there[name].read_bytes()).hexdigest() != file["sha256"]
    ]
    return sorted(wrong + [name for name in there if name not in listed and name not in ("run.json", "public.json")])


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_the_page_has_every_step_and_the_table_what_tables_have(afternoon: tuple[Path, str]) -> None:
    folder, said = afternoon
    script = commands_of(PAGE)
    places = [script.index(f"privypurse {command} ") for command in COMMANDS]
    assert places == sorted(places)
    rows = rows_of(folder / "people.csv")
    people = {row["customer_id"] for row in rows}
    assert len(rows) > 1.5 * len(people)
    assert len({row["consent"] for row in rows}) == 3
    assert {"", "?"} <= {row["age"] for row in rows} | {row["town"] for row in rows}
    assert "Recommended: sample" in said


def test_it_trains_people_by_their_own_consent(afternoon: tuple[Path, str]) -> None:
    folder, _ = afternoon
    people = {row["customer_id"]: row["consent"] for row in rows_of(folder / "people.csv")}
    plan = pp.Plan.load(folder / "privypurse-run" / "plan.json")
    worth = {"strict": 0.5, "medium": 1.0, "relaxed": 4.0}
    assert plan.people == len(people)
    by_level = dict(zip(plan.levels.epsilon.tolist(), plan.people_by_level().tolist(), strict=True))
    assert by_level == {ε: list(people.values()).count(consent) for consent, ε in worth.items()}
    assert (plan.spent_by_level() <= plan.levels.epsilon).all()
    gaps = json.loads((folder / "privypurse-run" / "gaps.json").read_text(encoding="utf-8"))
    assert gaps["columns"]["age"]["missing"] > 0
    assert gaps["columns"]["town"] == {"missing": gaps["columns"]["town"]["missing"], "other": 0}


def test_it_answers_about_new_rows(afternoon: tuple[Path, str]) -> None:
    answers = rows_of(afternoon[0] / "answers.csv")
    assert [row["customer_id"] for row in answers] == ["n1", "n2", "n3"]
    assert {row["prediction"] for row in answers} <= {"no", "yes"}
    model = pp.load(afternoon[0] / "privypurse-run")
    asked = {"age": ["70", "25", "unknown"], "town": ["Rome", "", "Paris"], "spent": ["120", "40", ""]}
    chances = model.predict_proba(asked)[:, 1]
    assert chances == pytest.approx([float(row["probability_yes"]) for row in answers], abs=1e-6)


def test_every_checksum_fits(afternoon: tuple[Path, str]) -> None:
    run = afternoon[0] / "privypurse-run"
    listed = json.loads((run / "run.json").read_text(encoding="utf-8"))["files"]
    assert {"model.pt", "model.json", "encoder.json", "plan.json", "config.toml", "metrics.json"} <= set(listed)
    assert {"export.onnx", "export.pt2"} <= set(listed)
    assert unlike(run) == []


@pytest.mark.parametrize("name", ["model.pt", "encoder.json", "plan.json", "export.onnx"])
def test_a_changed_file_is_seen(afternoon: tuple[Path, str], tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(afternoon[0] / "privypurse-run", tmp_path / "run"))
    changed = bytearray((run / name).read_bytes())
    changed[len(changed) // 2] ^= 1
    (run / name).write_bytes(changed)
    assert unlike(run) == [name]
    with pytest.raises(pp.InvalidInput, match=re.escape(name)):
        pp.load(run)
