"""A run by its configuration, in this process: data, plan, results, and what is refused before it begins."""

import csv
import io
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import privypurse as pp
from privypurse import datasets
from privypurse.errors import PrivyPurseWarning
from privypurse.runs import training_run
from privypurse.runs.config import BuiltIn, parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.measures import WHOSE
from privypurse.runs.metrics import spending_lines
from privypurse.runs.planning import plan_of
from privypurse.runs.records import Records, pixels, records_of
from privypurse.runs.training_run import _without_password, train_by
from privypurse.training.evaluation import score

CONFIG = """
[data]
table = "people.csv"
test = "others.parquet"
label = "answer"
classes = ["no", "yes"]
[data.features]
age = { low = 0, high = 100 }
kind = ["b", "a"]
[budgets]
epsilon = "epsilon"
[plan]
steps = 5
batch_size = 8
accountant = "rdp"
[model]
kind = "mlp"
hidden = [3]
[optimizer]
name = "SGD"
lr = 0.1
[training]
device = "cpu"
"""


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """40 records of 20 people to train on, 3 others to test on."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 120},{'ab'[i % 2]},{('no', 'yes')[i % 3 == 0]},{1 + i // 2 % 2},p{i // 2}" for i in range(40)]
    Path("people.csv").write_text("age,kind,answer,epsilon,id\n" + "\n".join(rows) + "\n", encoding="utf-8")
    columns = {"kind": ["a", "b", "a"], "answer": ["yes", "no", "no"], "age": [0, 50, 120]}
    pq.write_table(pa.table(columns), "others.parquet")


def edited(*changes):
    text = CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_config(text)


@pytest.mark.parametrize("wide", [False, True])
def test_sums_are_wide_where_the_configuration_says_so(wide, monkeypatch):
    asked = []
    monkeypatch.setattr(training_run, "train", lambda *_, **options: asked.append(options["wide_sums"]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_by(edited(('device = "cpu"', f'device = "cpu"\nwide_sums = {str(wide).lower()}')))
    assert asked == [wide]


def test_a_table_becomes_the_arrays_that_one_writes_by_hand():
    inputs = records_of(parse_config(CONFIG).data)
    assert inputs.shape == (6,)  # age and whether it is missing; b, a, other, missing
    assert inputs.outputs == 2
    assert inputs.test.inputs.tolist() == [[-1, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]
    assert inputs.test.labels.tolist() == [1, 0, 0]
    assert len(inputs.train) == 40
    assert inputs.train.inputs[3].tolist() == pytest.approx([2 * 3 / 100 - 1, 0, 1, 0, 0, 0])
    assert inputs.train.labels[:4].tolist() == [1, 0, 0, 1]


def test_the_census_as_arrays():
    inputs = records_of(BuiltIn("adult"))
    assert (len(inputs.train), len(inputs.test), inputs.outputs) == (32_561, 16_281, 2)
    assert (inputs.train.labels.sum(), inputs.test.labels.sum()) == (7_841, 3_846)


DATA = datasets.folder().resolve()  # tests run in folders of their own


@pytest.mark.slow
@pytest.mark.needs("data/FashionMNIST")
def test_images_as_arrays(monkeypatch):
    monkeypatch.setenv("PRIVYPURSE_DATA", str(DATA))
    inputs = records_of(BuiltIn("fashion-mnist"))
    raw = datasets.mnist("FashionMNIST")
    assert inputs.train.inputs.shape == (60_000, 1, 28, 28)
    assert inputs.train.inputs.dtype == np.float32
    assert (inputs.test.inputs[5, 0] * 255).round().tolist() == raw.test_images[5].tolist()
    assert (inputs.train.labels == raw.train_labels).all()


def test_pixels_are_shares_and_colours_come_first():
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 3, 3), dtype=np.uint8)
    part = pixels(images, np.array([3, 0, 9, 1, 1], np.uint8))
    assert part.inputs.shape == (5, 3, 4, 3)
    assert part.inputs[4, 2, 3, 1] == pytest.approx(images[4, 3, 1, 2] / 255)
    assert part.inputs.max() <= 1
    assert part.labels.tolist() == [3, 0, 9, 1, 1]


def test_the_plan_keeps_what_people_granted():
    granted = [1.0 + i // 2 % 2 for i in range(40)]
    for person in (None, "id"):
        extra = "" if person is None else '\nperson = "id"'
        made = plan_of(edited(('epsilon = "epsilon"', 'epsilon = "epsilon"' + extra)), 40)
        assert made.people == (40 if person is None else 20)
        assert (made.spent() <= granted).all()
        assert (made.spent() >= 0.99 * np.array(granted)).all()
    simulated = edited(
        ('epsilon = "epsilon"', "simulate = { epsilon = [1, 4], shares = [0.75, 0.25] }\ndelta = 1e-4")
    )
    assert sorted(plan_of(simulated, 40).epsilon.tolist()) == [1.0] * 30 + [4.0] * 10
    assert set(plan_of(simulated, 40).delta) == {1e-4}


def test_a_plan_that_was_made_before_is_taken_as_it_is_and_checked(tmp_path):
    granted = np.array([1.0 + i // 2 % 2 for i in range(40)])
    plan = pp.plan(pp.Budgets(granted), "scale", steps=3, batch_size=8, accountant="rdp")
    plan.save("made.json")
    begin, end = CONFIG.index("[plan]"), CONFIG.index("[model]")
    text = 'plan = "made.json"\n' + CONFIG[:begin] + CONFIG[end:]
    taken = plan_of(parse_config(text), 40)
    assert (taken.method, taken.steps) == ("scale", 3)
    assert taken.clip_norms.tolist() == plan.clip_norms.tolist()
    pp.plan(pp.Budgets(granted + 1), "scale", steps=3, batch_size=8, accountant="rdp").save("made.json")
    with pytest.raises(pp.InvalidInput, match="40 records overspend"):
        plan_of(parse_config(text), 40)


def test_a_score_is_counted_right():
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [1.0]]))
        model.bias.zero_()
    part = Records(np.array([[1.0], [2.0], [-3.0], [4.0], [-5.0]], np.float32), np.array([1, 0, 0, 1, 1]))
    found = score(model, part.inputs, part.labels, batch=2)
    # The second class has the odds e^x, so a record costs log(1 + e^-x) if it is of that class, else log(1 + e^x).
    costs = [math.log1p(math.exp(-x if y else x)) for (x,), y in zip(part.inputs, part.labels, strict=True)]
    assert (found.records, found.accuracy) == (5, 3 / 5)
    assert found.loss == pytest.approx(sum(costs) / 5, rel=1e-6)
    assert model.training


def test_no_id_is_a_formula_where_spending_is_looked_at_in_a_spreadsheet():
    ids = ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\uff1d1", "\t=2", "-4", "+4.5", "a=b", "7"]
    plan = pp.plan(pp.Budgets(np.ones(10), person=ids), steps=10, batch_size=2, accountant="rdp")
    rows = list(csv.reader(io.StringIO(spending_lines(plan.applied_to(ids), np.zeros(10)))))
    assert [row[0] for row in rows[1:]] == ["'" * (place < 6) + who for place, who in enumerate(ids)]


def test_a_run_that_follows_spending_says_what_each_person_spent():
    steps = CONFIG.replace("[model]", "extra_steps = 4\n\n[individual]\nevery = 3\n\n[model]")
    finished = train_by(parse_config(steps))
    folder = Path("privypurse-run")
    header, *rows = (folder / "spending.csv").read_text(encoding="utf-8").splitlines()
    assert header == "record,epsilon_promised,epsilon_spent"
    spent = np.array([row.split(",") for row in rows], dtype=float)
    np.testing.assert_allclose(spent[:, 2], finished.trained.spending.epsilon(), rtol=1e-4)
    assert (spent[:, 2] > 0).all()
    assert (spent[:, 2] <= spent[:, 1]).all()
    assert (folder / "spending.csv").stat().st_mode & 0o077 == 0
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["steps"] == metrics["fixed_steps"] + 4 == finished.trained.steps
    assert metrics["filter"] == "rdp"
    assert "no guarantee" in metrics["sensitive"]["spending"]["about"]
    assert "active" not in json.dumps({key: value for key, value in metrics.items() if key != "sensitive"})


def test_a_stopping_rule_comes_from_the_file():
    rule = 'stop = { kind = "plateau", noise = 30, most = 4 }'
    assert edited(("[model]", f"extra_steps = 4\n{rule}\n[model]")).plan.stop == pp.StopAtPlateau(noise=30, most=4)
    few = edited(("[model]", 'extra_steps = 4\nstop = { kind = "few", below = 9, epsilon = 0.1 }\n[model]'))
    assert few.plan.stop == pp.StopWhenFew(below=9, epsilon=0.1)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ('{ kind = "plato", noise = 3 }', "plateau"),
        ("{ noise = 3 }", "kind"),
        ('{ kind = "plateau" }', "noise"),
        ('{ kind = "plateau", noise = -1 }', "above 0, not -1"),
        ('{ kind = "plateau", noise = 3, offten = 2 }', "offten"),
        ('{ kind = "few", below = 2.5, epsilon = 1 }', "below"),
        ('"plateau"', "stop"),
    ],
)
def test_a_stopping_rule_that_means_nothing_is_refused(rule, said):
    with pytest.raises(pp.InvalidInput, match=said):
        edited(("[model]", f"extra_steps = 4\nstop = {rule}\n[model]"))


def test_a_run_leaves_model_plan_and_metrics():
    finished = train_by(parse_config(CONFIG))
    folder = Path("privypurse-run")
    assert sorted(path.name for path in folder.iterdir()) == [
        *(
            "config.toml",
            "encoder.json",
            "facts.json",
            "fingerprint.json",
            "fingerprint.key",
            "gaps.json",
            "metrics.json",
            "model.json",
            "model.pt",
            "plan.json",
        ),
        *("public.json", "run.json", "test.json"),
    ]
    opened = RunFolder.open(folder)
    assert opened.command == "train"
    assert {name: file.public for name, file in opened.files.items()} == {
        **dict.fromkeys(("model.pt", "model.json", "encoder.json", "facts.json"), True),
        **dict.fromkeys(("config.toml", "plan.json", "metrics.json", "gaps.json", "test.json"), False),
        **dict.fromkeys(("fingerprint.json", "fingerprint.key"), False),
    }
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"] == {
        "measured": "people",
        "about": WHOSE["people"],
        "records": 3,
        "accuracy": finished.score.accuracy,
        "loss": finished.score.loss,
    }
    # The figures are of the model that is saved: worked out again from its numbers.
    state = {name: value.numpy() for name, value in torch.load(folder / "model.pt", weights_only=True).items()}
    others = np.array([[-1, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]])
    hidden = np.maximum(others @ state["1.weight"].T + state["1.bias"], 0)
    out = hidden @ state["3.weight"].T + state["3.bias"]
    assert metrics["test"]["accuracy"] == pytest.approx((out.argmax(1) == [1, 0, 0]).mean())
    loaded = pp.load(folder)
    shares = np.exp(out) / np.exp(out).sum(1, keepdims=True)
    assert loaded.predict_proba(pq.read_table("others.parquet")) == pytest.approx(shares, abs=1e-5)
    assert loaded.predict(pq.read_table("others.parquet")).tolist() == [("no", "yes")[k] for k in out.argmax(1)]
    assert (folder / "config.toml").read_text(encoding="utf-8") == CONFIG
    assert set(metrics["sensitive"]) == {"about", "absent", "levels", "seconds"}
    assert "keep them as safe as the data" in metrics["sensitive"]["about"]
    assert [row["people"] for row in metrics["sensitive"]["levels"]] == [20, 20]
    assert all(row["certified"] <= row["epsilon"] for row in metrics["sensitive"]["levels"])
    public = json.dumps({key: value for key, value in metrics.items() if key != "sensitive"})
    assert '"people":' not in public
    assert '"certified"' not in public
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    kept = ("noise_multiplier", "test", "about", "sensitive")  # this noise was solved from everybody's budgets
    assert facts == {key: value for key, value in metrics.items() if key not in kept}
    for name in ("plan.json", "metrics.json", "run.json"):
        assert (folder / name).stat().st_mode & 0o077 == 0  # only its owner may read it
    pp.Plan.load(folder / "plan.json").check(pp.Budgets.read("people.csv"))


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("sqlite:///purses.db", True),
        ("postgresql://me@host/purses", True),
        ("postgresql://me:hunter2@host/purses", False),
        ("postgresql://me:hunter2@host:5432/purses?x=1", False),
    ],
)
def test_the_password_of_a_ledger_is_not_kept_with_a_run(address, kept):
    text = f'ledger = "{address}"\n{CONFIG}'
    found = _without_password(text)
    assert (found == text) is kept
    assert "hunter2" not in found
    assert parse_config(found) == replace(parse_config(text), ledger=address if kept else None)


def test_who_answers_for_a_run_is_a_public_fact():
    section = '[about]\ncontroller = "Bank of Oslo"\nlegal_basis = "consent"\nsector = "Finance"\n'
    finished = train_by(parse_config(section + CONFIG + 'purpose = "to plan branches"\n'))
    about = json.loads((finished.folder / "facts.json").read_text(encoding="utf-8"))["about_run"]
    said = {name: text for name, text in about.items() if text != "not stated"}
    assert said == {
        "controller": "Bank of Oslo",
        "legal basis": "consent",
        "sector": "Finance",
        "purpose": "to plan branches",
        "date": RunFolder.open(finished.folder).begun,
    }
    assert "contact" in about
    for wrong in ('[about]\nowner = "me"\n', '[about]\nsector = "Bakery"\n', "[about]\ncontact = 3\n"):
        with pytest.raises(pp.InvalidInput, match=r"\[about\]"):
            parse_config(wrong + CONFIG)


def test_noise_that_was_fixed_beforehand_is_a_public_fact():
    finished = train_by(edited(("steps = 5", "steps = 5\nnoise_multiplier = 2.5")))
    facts = json.loads((finished.folder / "facts.json").read_text(encoding="utf-8"))
    assert facts["noise_multiplier"] == finished.plan.noise_multiplier == 2.5
    assert "presence and declared ε" in facts["promise"]


def test_a_finished_run_is_not_overwritten_and_a_wrong_one_leaves_nothing():
    train_by(parse_config(CONFIG))
    before = Path("privypurse-run/model.pt").read_bytes()
    with pytest.raises(pp.InvalidInput, match=r"already holds the model.pt of a run.*spends everyone's ε again"):
        train_by(parse_config(CONFIG))
    assert Path("privypurse-run/model.pt").read_bytes() == before
    for old, new in (("lr = 0.1", "lr = -1.0"), ("age = {", "agee = {")):  # not hidden behind it
        with pytest.raises(pp.InvalidInput, match=r"^(?!.*already holds)"):
            train_by(edited((old, new)))
    with pytest.raises(pp.InvalidInput, match=r"out people.csv is a file"):
        train_by(edited(('device = "cpu"', 'out = "people.csv"')))
    with pytest.raises(pp.InvalidInput, match=r"out people.csv/x cannot be written to"):
        train_by(edited(('device = "cpu"', 'out = "people.csv/x"')))
    for old, new in (("lr = 0.1", "lr = -1.0"), ("age = {", "agee = {"), ("steps = 5", "steps = 0")):
        with pytest.raises(pp.InvalidInput):
            train_by(edited((old, new), ('device = "cpu"', 'out = "second"')))
    assert not Path("second").exists()


def weights(folder):
    return torch.cat([value.ravel() for value in torch.load(Path(folder) / "model.pt", weights_only=True).values()])


@pytest.mark.slow
def test_runs_differ_unless_they_are_seeded_and_then_they_say_so():
    for out in ("one", "two"):
        torch.manual_seed(0)
        train_by(edited(('device = "cpu"', f'out = "{out}"')))
    assert not torch.equal(weights("one"), weights("two"))
    for out in ("three", "four"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivyPurseWarning)
            train_by(edited(('device = "cpu"', f'out = "{out}"\nseed = 5')))
    assert torch.equal(weights("three"), weights("four"))
    assert "NOT private" in json.loads(Path("three/metrics.json").read_text(encoding="utf-8"))["promise"]
    assert "NOT private" not in Path("one/metrics.json").read_text(encoding="utf-8")
    public = {
        out: [name for name, file in RunFolder.open(out).files.items() if file.public] for out in ("one", "three")
    }
    assert public == {
        "one": ["model.json", "encoder.json", "model.pt", "facts.json"],
        "three": [],
    }  # who knows the seed can take the noise off


def text_in(value):
    """All keys and texts of some plain data."""
    if isinstance(value, dict):
        return [*value, *(text for part in value.values() for text in text_in(part))]
    if isinstance(value, list):
        return [text for part in value for text in text_in(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.slow
@pytest.mark.parametrize("individual", ["", "[individual]\nevery = 2\n"], ids=["plain", "individual"])
def test_a_seeded_runs_metrics_say_one_thing(individual):
    for out, seed in (("secret", ""), ("seeded", "\nseed = 5")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivyPurseWarning)
            train_by(edited(('device = "cpu"', f'device = "cpu"\nout = "{out}"{seed}\n{individual}')))
    metrics = {out: json.loads(Path(out, "metrics.json").read_text(encoding="utf-8")) for out in ("secret", "seeded")}
    claims = ("ε", "epsilon", "certified", "guarantee", "protects")
    said = {
        out: [text for text in text_in(one) if any(word in text for word in claims)] for out, one in metrics.items()
    }
    assert {"epsilon", "certified", metrics["secret"]["promise"]} <= set(said["secret"])
    assert said["seeded"] == []
    assert metrics["seeded"]["promise"] == metrics["seeded"]["about"]
    assert "NOT private" in metrics["seeded"]["promise"]
    assert [row["people"] for row in metrics["seeded"]["sensitive"]["levels"]] == [20, 20]


def test_a_run_goes_on_from_its_checkpoint():
    config = edited(('device = "cpu"', 'checkpoint = "saved"\ncheckpoint_every = 2'))
    train_by(config)
    first = weights("privypurse-run")
    for path in Path("privypurse-run").iterdir():
        path.unlink()
    train_by(config)  # all steps are taken already: nothing is trained again, and nobody spends anything again
    assert torch.equal(weights("privypurse-run"), first)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('table = "people.csv"', 'table = "nobody.csv"'), "nobody.csv does not exist"),
        (("age = {", "agee = {"), "no column 'agee'"),
        (('epsilon = "epsilon"', 'epsilon = "age"'), "says who granted what"),
        (("batch_size = 8", "batch_size = 80"), "only 40 people"),
        (('device = "cpu"', 'device = "gpu"'), "device 'gpu' cannot be used"),
        (
            ('device = "cpu"', "max_physical_batch = 0"),
            "max_physical_batch must be a whole number of at least 1",
        ),
    ],
)
def test_what_cannot_be_trained_is_named(change, words):
    with pytest.raises(pp.InvalidInput, match=words):
        train_by(edited(change))
    assert not Path("privypurse-run/model.pt").exists()


def test_without_a_test_table_nothing_is_said_of_accuracy():
    finished = train_by(edited(('test = "others.parquet"\n', "")))
    assert finished.score is None
    assert json.loads((finished.folder / "metrics.json").read_text(encoding="utf-8"))["test"] is None


def test_a_model_is_tested_on_the_way(tmp_path):
    """The last figures are those of the test in the end, and training is the same as without; facts tell nothing."""
    seeded = ('device = "cpu"', 'device = "cpu"\nseed = 1')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        train_by(edited(seeded, ("[training]", '[training]\nout = "plain"')))
        train_by(edited(seeded, ("[training]", '[training]\nout = "asked"\nvalidate_every = 2')))
    plain, asked = (torch.load(Path(out, "model.pt")) for out in ("plain", "asked"))
    assert all(torch.equal(plain[name], asked[name]) for name in plain)
    metrics = json.loads(Path("asked/metrics.json").read_text(encoding="utf-8"))
    assert metrics["history"]["measured"] == "people"
    assert "internal" in metrics["history"]["about"]
    assert [line["step"] for line in metrics["history"]["steps"]] == [0, 2, 4, 5]
    last = metrics["history"]["steps"][-1]
    assert (last["accuracy"], last["loss"]) == (metrics["test"]["accuracy"], metrics["test"]["loss"])
    assert "history" not in json.loads(Path("plain/metrics.json").read_text(encoding="utf-8"))
    assert "history" not in Path("asked/facts.json").read_text(encoding="utf-8")


def test_epochs_of_a_configuration_are_steps_of_its_people():
    changes = ("steps = 5", "epochs = 2"), ('epsilon = "epsilon"', 'epsilon = "epsilon"\nperson = "id"')
    assert plan_of(edited(*changes), 40).steps == 5  # twenty people, eight a step
    given = ("batch_size = 8", "batch_size = 8\nnoise_multiplier = 3.0")
    with pytest.raises(pp.InvalidInput, match="people=, a public number"):
        plan_of(edited(*changes, given), 40)
    public = ("epochs = 2", "epochs = 2\npeople = 32")
    assert plan_of(edited(*changes, given, public), 40).steps == 8


@pytest.mark.parametrize(
    "change",
    [
        ('["no", "yes"]', '["no", "maybe"]'),
        ('kind = ["b", "a"]', 'kind = ["b", "c"]'),
        ("age = { low = 0, high = 100 }", "age = { low = 2020-01-01, high = 2021-01-01 }"),
        ('kind = ["b", "a"]', "kind = { low = 0, high = 1 }"),
    ],
)
def test_no_cell_decides_whether_a_run_takes_place(change):
    """A cell that is not what the file lists is missing or other: an error would tell of a row."""
    finished = train_by(edited(change))
    assert finished.trained.steps == 5
    gaps = report("gaps.json")
    said = (gaps["columns"]["age"]["missing"], *gaps["columns"]["kind"].values(), gaps["without_target"])
    assert (
        said
        == {"maybe": (0, 0, 0, 14), '"c"': (0, 0, 20, 0), "2020": (40, 0, 0, 0), "low = 0": (0, 40, 0)}[
            next(word for word in ("maybe", '"c"', "2020", "low = 0") if word in change[1])
        ]
    )
    assert finished.score.records == (2 if "maybe" in change[1] else 3)  # others without a target say nothing


@pytest.mark.parametrize(
    ("target", "outputs"),
    [
        ('label = "age"\nrange = { low = 0, high = 100 }', 1),
        ('labels = ["answer", "wild"]', 2),
    ],
)
def test_numbers_and_several_flags_are_learned_too(target, outputs):
    rows = Path("people.csv").read_text(encoding="utf-8").splitlines()
    wild = [f"{row},{('1', '0', '')[place % 3] if place else 'wild'}" for place, row in enumerate(rows)]
    Path("people.csv").write_text("\n".join(wild), encoding="utf-8")
    columns = {
        "kind": ["a", "b", "a"],
        "answer": ["yes", "no", None],
        "age": [0, 50, None],
        "wild": [True, False, None],
    }
    pq.write_table(pa.table(columns), "others.parquet")
    finished = train_by(
        edited(('label = "answer"\nclasses = ["no", "yes"]', target), ("age = { low = 0, high = 100 }\n", ""))
    )
    assert finished.score.records == 2
    assert finished.score.outputs.shape == (2, outputs)
    metrics = json.loads(Path("privypurse-run/metrics.json").read_text(encoding="utf-8"))
    assert metrics["test"] == {
        "measured": "people",
        "about": WHOSE["people"],
        "records": 2,
        "loss": finished.score.loss,
    }
    gaps = {"columns": {"kind": {"missing": 0, "other": 0}}, "without_target": 0, "records": 40}
    assert {key: each for key, each in report("gaps.json").items() if key != "about"} == gaps
    figures = report("test.json")
    assert "root_mean_squared_error" in figures if outputs == 1 else figures["labels"]["wild"]["records"] == 2


def report(name):
    return json.loads(Path("privypurse-run", name).read_text(encoding="utf-8"))


def listed_as_public():
    return {name for name, file in RunFolder.open("privypurse-run").files.items() if file.public}


@pytest.mark.slow
@pytest.mark.needs("plots")
def test_how_good_a_model_is_stands_in_files_that_say_on_whom():
    plots = ('device = "cpu"', 'device = "cpu"\nplots = true\nvalidate_every = 5\nmeasure_members = true')
    finished = train_by(edited(plots, ("[budgets]", '[data.groups]\nkind = ["a"]\n[budgets]')))
    found, members = report("test.json"), report("members.json")
    assert found["measured"] == report("metrics.json")["test"]["measured"] == "people"
    assert found["accuracy"] == finished.score.accuracy
    assert np.sum(found["confusion"]) == 3
    assert {name: each["records"] for name, each in found["groups"]["kind"].items()} == {"a": 2, "(other)": 1}
    assert [one["step"] for one in found["history"]] == [0, 5]
    svg = Path("privypurse-run/curves.svg").read_text(encoding="utf-8")
    assert "ROC" in svg
    assert "loss while it trains" in svg
    assert (members["measured"], members["records"]) == ("members", 40)
    assert listed_as_public() == {"model.pt", "model.json", "encoder.json", "facts.json"}


def test_people_who_are_held_out_are_neither_planned_for_nor_trained_on():
    held = 'held_out = { share = 0.4, seed = 3 }\nperson = "id"'
    config = edited(('test = "others.parquet"', held))
    records = records_of(config.data)
    inside, outside = set(records.train.person), set(records.test.person)
    assert inside | outside == {f"p{i}" for i in range(20)}
    assert not inside & outside
    assert (len(records.train), len(records.test)) == (2 * len(inside), 2 * len(outside))
    finished = train_by(config)
    assert (finished.plan.people, finished.plan.absent) == (len(inside), 0)
    assert finished.score.records == 2 * len(outside)
    assert report("test.json")["measured"] == "people"
    assert "test.json" not in listed_as_public()


def consents(*numbers, head="id,epsilon"):
    rows = [f"{f' p{i} ' if i % 3 else f'p{i}'},{1 + i % 2}\n" for i in numbers]
    Path("consents.csv").write_text(f"{head}\n{''.join(rows)}", encoding="utf-8")


def test_consents_in_a_file_of_their_own_are_joined_by_id():
    """The same plan as from a column of the table, in whatever order consents stand."""
    joined = edited(('epsilon = "epsilon"', 'epsilon = "epsilon"\nperson = "id"'))
    apart = edited(('epsilon = "epsilon"', 'table = "consents.csv"\nepsilon = "epsilon"\nperson = "id"'))
    consents(*range(19, -1, -1))
    one, two = (plan_of(each, 40).for_records(records_of(each.data).train.person) for each in (joined, apart))
    assert one.noise_multiplier == two.noise_multiplier
    assert (one.epsilon == two.epsilon).all()
    assert (one.rates == two.rates).all()
    assert set(one.epsilon.tolist()) == {1.0, 2.0}
    consents(*(i for i in range(20) if i != 3))
    with pytest.raises(pp.InvalidInput, match="ids that have no budget: 'p3'"):
        plan_of(apart, 40)
    consents(*range(20), head="ID,epsilon")
    with pytest.raises(pp.InvalidInput, match="has no column 'id'"):
        plan_of(apart, 40)
    with pytest.raises(pp.InvalidInput, match="which both tables have"):
        edited(('epsilon = "epsilon"', 'table = "consents.csv"\nepsilon = "epsilon"'))


def test_who_has_rows_moves_nothing_that_is_solved_from_consents():
    """A person's data, given the list of budgets: with their consent and without their rows all else stays."""
    config = edited(('epsilon = "epsilon"', 'table = "consents.csv"\nepsilon = "epsilon"\nperson = "id"'))
    consents(*range(20))
    lines = Path("people.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    plans = []
    for rows in (lines, lines[:-2]):  # without the rows of p19
        Path("people.csv").write_text("".join(rows), encoding="utf-8")
        plans.append(plan_of(config, 0).for_records(records_of(config.data).train.person))
    one, two = plans
    assert (one.absent, two.absent) == (0, 1)
    assert one.noise_multiplier == two.noise_multiplier
    assert (one.rates[:38] == two.rates).all()
    # The twin: consents of those alone who have rows.
    consents(*range(19))
    assert plan_of(config, 0).noise_multiplier != one.noise_multiplier


def test_a_test_with_people_in_training_is_refused_however_their_ids_are_written():
    """Its figures would be of members (rule 6), and public where `measured` says so of that file."""
    config = edited(
        ("others.parquet", "others.csv"), ('label = "answer"', 'person = "id"\nmeasured = "public"\nlabel = "answer"')
    )
    for who in ("p3", " p19 "):
        Path("others.csv").write_text(f"age,kind,answer,id\n1,a,no,x\n2,b,yes,{who}\n", encoding="utf-8")
        with pytest.raises(pp.InvalidInput, match=rf"people who are in the table .*'{who.strip()}'"):
            records_of(config.data)
    Path("others.csv").write_text("age,kind,answer,id\n1,a,no,x\n2,b,yes,p20\n", encoding="utf-8")
    assert len(records_of(config.data).test) == 2


def test_consents_that_are_named_as_the_table_itself_are_its_columns():
    config = edited(('epsilon = "epsilon"', 'table = "people.csv"\nepsilon = "epsilon"\nperson = "id"'))
    assert (plan_of(config, 40).epsilon == pp.Budgets.read("people.csv", person="id").epsilon).all()


@pytest.mark.parametrize("file", ["people.csv", "consents.csv"])
def test_a_table_that_is_written_to_meanwhile_trains_nothing(monkeypatch, file):
    """Rows of one file with the budgets of another would go to the wrong people."""
    consents(*range(20))
    config = edited(('epsilon = "epsilon"', 'table = "consents.csv"\nepsilon = "epsilon"\nperson = "id"'))

    def rewritten(*given):
        with Path(file).open("a", encoding="utf-8") as more:
            more.write("\n")
        return made

    made = plan_of(config, 40)
    monkeypatch.setattr(training_run, "plan_of", rewritten)
    with pytest.raises(pp.InvalidInput, match=f"{file} changed while it was being read"):
        train_by(config)
    assert not Path("privypurse-run").exists()
