"""A run is looked at again: ε is recomputed, and whoever edits a file is found, or it is said that nothing can."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import privypurse as pp
from privypurse import cli
from privypurse._storage import digest_of
from privypurse.plans import file as planfile
from privypurse.runs.config import parse_config
from privypurse.runs.private_ranges import Released
from privypurse.runs.training_run import train_by
from privypurse.runs.verification.findings import BEYOND, Verdict

CONFIG = """
[data]
table = "people.csv"
label = "answer"
classes = ["no", "yes"]
person = "id"
[data.features]
age = { low = 0, high = 100 }
[budgets]
epsilon = "epsilon"
[plan]
steps = 5
batch_size = 8
accountant = "rdp"
noise_multiplier = 2.0
[individual]
every = 3
[model]
kind = "mlp"
hidden = [3]
[optimizer]
name = "SGD"
lr = 0.1
[training]
device = "cpu"
checkpoint = "kept"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of 20 people with two records each, half of whom grant 1 and half 2; its table and its checkpoint."""
    home, before = tmp_path_factory.mktemp("verified"), Path.cwd()
    os.chdir(home)
    try:
        rows = [f"{i},{('no', 'yes')[i % 3 == 0]},{1 + i // 2 % 2},=p{i // 2}" for i in range(40)]
        Path("people.csv").write_text("age,answer,epsilon,id\n" + "\n".join(rows) + "\n", encoding="utf-8")
        train_by(parse_config(CONFIG))
    finally:
        os.chdir(before)
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


RUN = Path("privypurse-run")


def read(name):
    return json.loads((RUN / name).read_text(encoding="utf-8"))


def write(name, content):
    (RUN / name).write_text(json.dumps(content), encoding="utf-8")


def mended():
    """What somebody does who knows of digests: all of them are made to fit, the plan's own too."""
    plan = {key: value for key, value in read("plan.json").items() if key != "sha256"}
    write("plan.json", {**plan, "sha256": digest_of(plan)})
    for name in ("run.json", "public.json"):
        listing = read(name)
        for each, file in listing["files"].items():
            file["sha256"] = hashlib.sha256((RUN / each).read_bytes()).hexdigest()
        write(name, listing)


def verdicts(**beside):
    return {each.what: each.verdict.value for each in pp.verify(RUN, **beside).findings}


def wrong(**beside):
    return {each.what for each in pp.verify(RUN, **beside).of(Verdict.WRONG)}


def test_a_run_that_nobody_touched_fits(home):
    assert verdicts() == {
        **dict.fromkeys(("files", "what is listed", "what is shown", "certified ε", "configuration"), "fits"),
        **dict.fromkeys(("levels", "test", "steps", "facts", "spending"), "fits"),
        **dict.fromkeys(("journal", "each one's spending", "grants"), "not checked"),
    }
    found = pp.verify(RUN, table="people.csv", checkpoint="kept")
    assert found.sound
    assert found.edition == "internal"
    assert {each.what for each in found.of(Verdict.OPEN)} == {"each one's spending"}


@pytest.mark.slow
def test_what_is_certified_anew_is_what_another_accountant_finds(home):
    """dp-accounting is the referee."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    plan, metrics = pp.Plan.load(RUN / "plan.json"), read("metrics.json")
    for row, rate in zip(metrics["sensitive"]["levels"], plan.levels.rate, strict=True):
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(2.0))
        event = dp_accounting.SelfComposedDpEvent(step, 5)
        other = RdpAccountant(np.arange(2, 257).tolist()).compose(event).get_epsilon(1e-5)
        assert row["certified"] <= other * (1 + 1e-9)  # whose orders are fewer
        assert row["certified"] == pytest.approx(other, rel=0.02)
        assert row["certified"] <= row["epsilon"]


def edit_plan(change):
    plan = read("plan.json")
    change(plan)
    write("plan.json", plan)


def test_an_edited_plan_is_seen_by_its_digest_and_its_own_checksum(home):
    edit_plan(lambda plan: plan["shape"].update(noise_multiplier=2.5))
    assert wrong() == {"files", "plan"}


def test_a_rate_that_was_raised_is_seen_whatever_the_digests_say(home):
    def raised(plan):
        plan["levels"]["rate"][0] *= 1.5

    edit_plan(raised)
    mended()
    assert "files" not in wrong()
    assert {"certified ε", "levels"} <= wrong()


def test_noise_that_was_lowered_is_seen_whatever_the_digests_say(home):
    edit_plan(lambda plan: plan["shape"].update(noise_multiplier=1.0))
    mended()
    assert {"certified ε", "configuration", "facts", "levels"} <= wrong()


def test_one_person_moved_to_a_larger_promise_is_seen_by_metrics_spending_and_the_table(home):
    plan = pp.Plan.load(RUN / "plan.json")
    level_of = np.array(plan.level_of)
    level_of[int(np.argmin(level_of))] = 1
    edit_plan(lambda content: content.update(level_of=planfile._packed(level_of)))
    mended()
    assert wrong() == {"levels", "spending"}
    # Whoever edits those as well is found by what the person granted, and by nothing less: that is said.
    metrics, rows = read("metrics.json"), (RUN / "spending.csv").read_text(encoding="utf-8").splitlines()
    metrics["sensitive"]["levels"][0]["people"] -= 1
    metrics["sensitive"]["levels"][1]["people"] += 1
    write("metrics.json", metrics)
    first = next(k for k, row in enumerate(rows) if row.split(",")[1] == "1")
    rows[first] = rows[first].replace(",1,", ",2,")
    (RUN / "spending.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    mended()
    assert wrong() == set()
    assert verdicts()["grants"] == "not checked"
    assert wrong(table="people.csv") == {"grants"}  # which is the file that the run was trained on
    assert wrong(checkpoint="kept") == {"journal"}  # which knows the plan that it counts


@pytest.mark.parametrize("place", [0, 1])
def test_a_claim_that_was_lowered_is_seen_whatever_the_digests_say(home, place):
    metrics = read("metrics.json")
    metrics["sensitive"]["levels"][place]["certified"] *= 0.99
    write("metrics.json", metrics)
    assert wrong() == {"files", "levels"}
    mended()
    assert wrong() == {"levels"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 3),
        ("clip_norm", 0.5),
        ("promise", "Everything is private."),
        ("accountant", "pld"),
        ("delta", 1e-9),
        ("unit", "record"),
        ("levels", {"strict": 0.1}),
        ("people", 20),
    ],
)
def test_a_public_fact_that_was_edited_does_not_fit_the_plan(home, key, value):
    write("facts.json", {**read("facts.json"), key: value})
    mended()
    assert wrong() == {"facts"}


def test_more_steps_than_the_plan_pays_for_are_seen(home):
    for name in ("facts.json", "metrics.json"):
        write(name, {**read(name), "steps": 6})
    mended()
    assert wrong() == {"steps"}
    assert wrong(checkpoint="kept") == {"steps", "journal"}


@pytest.mark.parametrize("name", ["plan.json", "model.pt", "spending.csv", "config.toml"])
def test_a_missing_file_is_seen(home, name):
    (RUN / name).unlink()
    found = pp.verify(RUN)
    assert not found.sound
    assert any(name in each.said for each in found.of(Verdict.WRONG))


@pytest.mark.parametrize(
    "name", ["plan.json", "config.toml", "metrics.json", "facts.json", "spending.csv", "model.pt"]
)
def test_a_file_that_is_taken_off_the_list_with_its_claims_is_seen(home, name):
    (RUN / name).unlink()
    for each in ("run.json", "public.json"):
        listing = read(each)
        listing["files"].pop(name, None)
        write(each, listing)
    assert wrong() == {"plan" if name == "plan.json" else "what is listed"}


def test_a_list_that_is_taken_away_with_what_it_lists_is_seen(home):
    (RUN / "run.json").unlink()
    assert wrong() == {"internal files"}


def test_a_run_by_another_name_is_none(home):
    for each in ("run.json", "public.json"):
        write(each, {**read(each), "command": "dream"})
    assert wrong() == {"claims"}


def test_a_file_that_the_list_calls_public_and_is_not_is_seen(home):
    listing = read("run.json")
    listing["files"]["spending.csv"]["public"] = True
    write("run.json", listing)
    assert wrong() == {"files", "public files"}


@pytest.mark.parametrize("name", ["spending.csv", "plan.json", "fingerprint.key", "metrics.json"])
def test_an_internal_file_that_both_lists_call_public_is_seen(home, name):
    listing = read("run.json")
    listing["files"][name]["public"] = True
    write("run.json", listing)
    shown = {each: file for each, file in listing["files"].items() if file["public"]}
    write("public.json", {**listing, "files": shown})
    assert wrong() == {"public files"}
    for each in Path(RUN).iterdir():  # whoever was given the public files sees it too
        if each.name not in ("public.json", *shown):
            each.unlink()
    assert "public files" in wrong()


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("encoder.json", lambda content: content["columns"][0].update(high=50.0)),
        ("encoder.json", lambda content: content["target"].update(classes=["yes", "no"])),
        ("model.json", lambda content: content["network"].update(activation="tanh")),
        ("model.json", lambda content: content.update(outputs=3)),
    ],
)
def test_what_follows_from_the_configuration_is_compared_with_it_whatever_the_digests_say(home, name, edit):
    content = read(name)
    edit(content)
    write(name, content)
    mended()
    assert wrong() == {"configuration"}


@pytest.mark.parametrize("lie", [{"at_most": 0.1}, {"levels": {"all": 0.1}}, {"told": [{"step": 5, "answer": 9.0}]}])
def test_a_lie_in_facts_and_metrics_alike_is_seen(home, lie):
    """A cap that nobody set, a level that there was not, an answer that nobody was asked for."""
    for name in ("facts.json", "metrics.json"):
        write(name, {**read(name), **lie})
    mended()
    assert wrong() == {"facts"}


CHARGED = "Everybody in the plan is charged in a ledger."


def charged(said):
    for name in ("run.json", "public.json"):
        write(name, {**read(name), "charged": said})


@pytest.mark.parametrize("said", [CHARGED, "The auditor's ledger charges everybody."])
def test_lists_that_both_lie_about_who_is_charged_are_seen(home, said):
    """By the plan, by facts.json and by the ledger.json that is not there; facts.json is enough."""
    charged(said)
    assert wrong() == {"facts"}
    (found,) = pp.verify(RUN).of("does not fit")
    assert all(name in found.said for name in ("plan.json", "facts.json", "ledger.json")) == (said == CHARGED)
    for each in Path(RUN).iterdir():
        if each.name not in ("public.json", *read("public.json")["files"]):
            each.unlink()
    assert wrong() == {"facts"}
    charged_of_public = {**read("public.json"), "charged": ""}  # as of an earlier release
    write("public.json", charged_of_public)
    assert wrong() == set()


def published(source, name):
    """An internal file under a name that runs show, listed as public."""
    shutil.copy(RUN / source, RUN / name)
    for each in ("run.json", "public.json"):
        listing = read(each)
        listing["files"][name] = {"public": True, "sha256": ""}
        write(each, listing)
    mended()


@pytest.mark.parametrize("source", ["metrics.json", "spending.csv", "fingerprint.key"])
@pytest.mark.parametrize(
    "name", ["export.onnx", "export.pt2", "curves.svg", "ranges.json", "answer.json", "terms.json"]
)
def test_an_internal_file_by_a_name_that_runs_show_is_seen(home, name, source):
    published(source, name)
    assert "public files" in wrong()
    assert any(name in each.said for each in pp.verify(RUN).of("does not fit"))


def test_ranges_are_shown_where_the_configuration_asked_for_them(home):
    released = Released(0.1, {"age": (0.0, 50.0)}, {})
    (home / "made.json").write_text(json.dumps(released.to_json()), encoding="utf-8")
    published("../made.json", "ranges.json")
    assert wrong() == {"what is shown"}


def test_a_public_list_of_another_command_is_seen(home):
    write("public.json", {**read("public.json"), "command": "demo"})
    assert wrong() == {"files"}


def test_a_link_to_a_file_elsewhere_is_told_of(home):
    shutil.move(RUN / "model.pt", home / "elsewhere.pt")
    (RUN / "model.pt").symlink_to(home / "elsewhere.pt")
    assert verdicts()["links"] == "not checked"
    assert wrong() == set()
    (home / "elsewhere.pt").write_bytes(b"others")
    assert wrong() == {"files"}


def test_another_model_is_seen_unless_its_digest_is_rewritten_and_that_is_said(home):
    torch.save({name: value + 1 for name, value in torch.load(RUN / "model.pt").items()}, RUN / "model.pt")
    assert wrong() == {"files"}
    mended()
    assert wrong() == set()
    assert any("the model came out of training by this plan" in each for each in BEYOND)


def test_a_file_that_the_run_did_not_write_is_told_of(home):
    (RUN / "notes.txt").write_text("hello", encoding="utf-8")
    found = pp.verify(RUN)
    assert found.sound
    assert any("notes.txt" in each.said for each in found.of(Verdict.OPEN))


@pytest.mark.parametrize("edit", ["twice", "missing", "stranger", "over"])
def test_spending_that_is_not_everybodys_is_seen(home, edit):
    head, *rows = (RUN / "spending.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("'=p0,")  # as a spreadsheet takes it for text
    who, promised, _ = rows[0].split(",")
    rows[0] = {
        "twice": rows[1],
        "missing": "",
        "stranger": f"p99,{promised},0.1",
        "over": f"{who},{promised},{float(promised) + 0.01}",
    }[edit]
    (RUN / "spending.csv").write_text("\n".join([head, *filter(None, rows)]) + "\n", encoding="utf-8")
    mended()
    assert wrong() == {"spending"}


def test_a_seed_that_is_kept_quiet_is_seen(home):
    text = (RUN / "config.toml").read_text(encoding="utf-8")
    (RUN / "config.toml").write_text(text + "seed = 1\n", encoding="utf-8")
    mended()
    assert wrong() == {"configuration"}


def test_the_table_must_be_the_one_that_people_granted_in(home):
    lines = Path("people.csv").read_text(encoding="utf-8").replace(",2,=p3", ",1.5,=p3")
    Path("people.csv").write_text(lines, encoding="utf-8")
    assert wrong(table="people.csv") == {"grants", "table"}


def test_the_fingerprint_is_of_the_table_under_a_key_that_may_stay_in_the_house(home):
    key, said = bytes.fromhex((RUN / "fingerprint.key").read_text()), read("fingerprint.json")["table"]
    whole = Path("people.csv").read_bytes()
    assert said == hashlib.blake2b(whole, digest_size=32, key=key).hexdigest()
    assert said != hashlib.blake2b(whole, digest_size=32).hexdigest()  # which somebody could guess
    listing = read("run.json")
    assert not any(listing["files"][name]["public"] for name in ("fingerprint.json", "fingerprint.key"))
    assert verdicts(table="people.csv")["table"] == "fits"
    Path("people.csv").write_bytes(whole.replace(b"\n10,", b"\n11,"))  # nobody's grant
    assert wrong(table="people.csv") == {"table"}
    (RUN / "fingerprint.key").unlink()
    del listing["files"]["fingerprint.key"]
    write("run.json", listing)
    assert verdicts(table="people.csv")["table"] == "not checked"


def test_what_the_run_says_of_itself_is_what_was_configured(home):
    about = read("facts.json")["about_run"]
    assert about["controller"] == about["legal basis"] == "not stated"
    assert about["date"] == read("public.json")["begun"]
    write("facts.json", {**read("facts.json"), "about_run": {**about, "controller": "Nobody Inc."}})
    mended()
    assert wrong() == {"facts"}


def test_of_the_public_files_alone_no_epsilon_can_be_recomputed(home):
    shown = home / "shown"
    shown.mkdir()
    for name in ("public.json", *read("public.json")["files"]):
        shutil.copy(RUN / name, shown / name)
    found = pp.verify(shown)
    assert (found.sound, found.edition) == (True, "public")
    assert {each.what: each.verdict.value for each in found.findings} == {
        "files": "fits",
        "certified ε": "not checked",
    }


def test_the_command_says_it_and_its_exit_code_too(home, capsys):
    assert cli.main(["verify", str(RUN), "--table", "people.csv", "--checkpoint", "kept"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "computed anew by rdp for each of 2 levels" in out
    assert "What no folder can prove" in out
    assert cli.main(["verify", str(RUN), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["sound"] is True
    assert {"what": "files", "verdict": "fits", "said": content["findings"][0]["said"]} == content["findings"][0]
    (RUN / "model.pt").write_bytes(b"others")
    assert cli.main(["verify", str(RUN), "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["sound"] is False
    assert "is not what it should be: files" in said.err
    assert cli.main(["verify", "nowhere"]) == 2
    assert "is no run's folder" in capsys.readouterr().err


def test_what_was_not_checked_is_the_last_line(home, capsys):
    assert cli.main(["verify", str(RUN)]) == 0
    *_, closing, last = capsys.readouterr().out.strip().splitlines()
    found = pp.verify(RUN)
    left = [each.what for each in found.of("not checked")]
    assert "grants" in left
    assert last == f"{len(left)} of {len(found.findings)} not checked: {', '.join(left)}."
    assert closing == f"Nothing that was checked is wrong: {len(found.of('fits'))} of {len(found.findings)} fit."
    said = {each.what: each.said for each in found.findings}
    assert "--table" in said["grants"]
    assert "--checkpoint" in said["journal"]
    assert "no test.json" in said["test"]  # which this run did not write


@pytest.mark.parametrize(("flag", "path"), [("table", "nosuch.csv"), ("table", "kept"), ("checkpoint", "nosuch")])
def test_a_path_that_leads_nowhere_is_no_fault_of_the_run(home, capsys, flag, path):
    assert cli.main(["verify", str(RUN), f"--{flag}", path]) == 2
    said = capsys.readouterr()
    assert f"--{flag} is '{path}'" in said.err
    assert said.out == ""
    with pytest.raises(pp.InvalidInput, match=f"{flag}= is '{path}'"):
        pp.verify(RUN, **{flag: path})


@pytest.mark.parametrize("cells", ["name,town\nAda,Oslo\n", "id,epsilon\nada,1\n"])
def test_another_table_is_told_apart_from_a_run_that_is_wrong(home, capsys, cells):
    Path("other.csv").write_text(cells, encoding="utf-8")
    assert wrong(table="other.csv") == {"grants", "table"}
    assert cli.main(["verify", str(RUN), "--table", "other.csv"]) == 1
    said = capsys.readouterr().err
    assert "--table other.csv do not fit each other: grants, table" in said
    assert "Ada" not in said
    (RUN / "model.pt").write_bytes(b"others")
    assert cli.main(["verify", str(RUN), "--table", "other.csv"]) == 1
    assert "is not what it should be: files, grants, table" in capsys.readouterr().err


def test_a_ledger_that_the_run_does_not_name_is_not_passed_over(home, tmp_path):
    ledger = pp.Ledger.create(f"sqlite:///{tmp_path}/purses.db", epsilons=[1], key=f"{tmp_path}/key")
    assert "ledger" not in verdicts()
    assert verdicts(ledger=ledger)["ledger"] == "not checked"


@pytest.mark.parametrize("consents", ["consents.csv", "people.csv"])
def test_grants_in_a_file_of_their_own_are_compared_by_id(home, consents):
    """As the configuration names it; where that file is not here, it is said."""
    text = (RUN / "config.toml").read_text(encoding="utf-8")
    text = text.replace('epsilon = "epsilon"', f'table = "{consents}"\nepsilon = "epsilon"')
    (RUN / "config.toml").write_text(text, encoding="utf-8")
    mended()
    shutil.copy("people.csv", "moved.csv")
    if consents == "consents.csv":
        assert verdicts(table="moved.csv")["grants"] == "not checked"
        rows = [f"=p{i},{1 + i % 2}" for i in reversed(range(20))]
        Path(consents).write_text("id,epsilon\n" + "\n".join(rows) + "\n", encoding="utf-8")
        assert verdicts(table="moved.csv")["grants"] == "fits"
        Path(consents).write_text("id,epsilon\n" + "\n".join(rows).replace("=p3,2", "=p3,1") + "\n", encoding="utf-8")
        assert wrong(table="moved.csv") == {"grants"}
    else:
        assert verdicts(table="moved.csv")["grants"] == "fits"
