"""What an audit found is written as plain JSON and read back strictly."""

import json

import pytest

from privypurse.audit.result import AuditResult, Cost, Group, Roc
from privypurse.errors import InvalidInput


def result(**changes):
    group = Group(
        name="ε = 1",
        claimed_epsilon=1.0,
        delta=1e-5,
        canaries=500,
        bounds={"guesses": 0.2, "f-dp": 0.4, "gaussian scores": 0.8},
        auc=0.6,
        auc_interval=(0.55, 0.65),
        roc=Roc(false_positive_rate=(0.0, 0.5, 1.0), true_positive_rate=(0.0, 0.7, 1.0)),
        flagged=False,
    )
    stated = {
        "attack": "canaries",
        "data": "made up",
        "delta": 1e-5,
        "confidence": 0.95,
        "verdict_reading": "f-dp",
        "groups": (group,),
        "cost": Cost(trainings=1, seconds=2.5),
        "words": ("One run.",),
    }
    return AuditResult(**(stated | changes))


def test_it_reads_back_what_it_wrote(tmp_path):
    made = result()
    made.save(tmp_path / "audit")
    assert AuditResult.load(tmp_path / "audit") == made
    assert (tmp_path / "audit" / "audit.json").stat().st_mode & 0o777 == 0o600


def test_the_file_says_its_format_and_leaves_out_what_has_no_figure():
    plain = json.loads(result().to_json())
    assert plain["format"] == "privypurse audit 1"
    assert plain["groups"][0]["bounds"] == {"guesses": 0.2, "f-dp": 0.4, "gaussian scores": 0.8}
    assert plain.keys().isdisjoint({"edition", "faults"})
    assert "targets" not in plain["groups"][0]


def changed(**changes):
    return json.dumps(json.loads(result().to_json()) | changes)


@pytest.mark.parametrize(
    "text",
    [
        changed(format="privypurse audit 2"),
        changed(extra=1),
        changed(attack="magic"),
        changed(confidence=1.5),
        changed(groups=[]),
        changed(data="members"),
        changed(edition="internal"),
        changed(verdict_reading="best"),
        json.dumps({key: value for key, value in json.loads(result().to_json()).items() if key != "format"}),
        '{"format": "privypurse audit 1"}',
        "{",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InvalidInput, match=r"audit\.json"):
        AuditResult.from_json(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"claimed_epsilon": -1.0},
        {"delta": 0.0},
        {"canaries": 0},
        {"auc": 1.2},
        {"auc_interval": [0.7, 0.6]},
        {"bounds": {"f-dp": -0.1}},
        {"bounds": {"best": 0.1}},
        {"roc": {"false_positive_rate": [0.0, 1.0], "true_positive_rate": [1.0]}},
        {"roc": {"false_positive_rate": [1.0, 0.0], "true_positive_rate": [0.0, 1.0]}},
    ],
)
def test_a_group_holds_what_can_be(changes):
    plain = json.loads(result().to_json())
    plain["groups"][0] |= changes
    with pytest.raises(InvalidInput, match=r"audit\.json"):
        AuditResult.from_json(json.dumps(plain))


def test_an_audit_on_members_is_internal():
    assert json.loads(result(data="members", edition="internal").to_json())["edition"] == "internal"


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="nowhere"):
        AuditResult.load(tmp_path / "nowhere")


def test_one_flagged_group_flags_the_audit():
    over = Group(name="ε = 2", claimed_epsilon=2.0, delta=1e-5, bounds={"f-dp": 2.1}, flagged=True)
    assert not result().flagged
    assert result(groups=(*result().groups, over)).flagged
