"""`privypurse train` and `privypurse demo`, run for real."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import privypurse as pp
from privypurse import cli, datasets
from training_tools import steps_on_disk

pytestmark = pytest.mark.usefixtures("empty_folder")


def call(*arguments, before=""):
    """Run a command in a process of its own, after some Python code."""
    code = f"import sys\n{before}\nfrom privypurse.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=900,  # a busy machine keeps it
        # Threads of one small process after another only get into each other's way.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def score_of(folder, some):
    """Accuracy and loss of a saved model of the census, worked out with NumPy alone."""
    saved = torch.load(folder / "model.pt", weights_only=True)
    state = {name: value.numpy().astype(float) for name, value in saved.items()}
    adult = datasets.adult()
    hidden = np.maximum(adult.features()[some] @ state["1.weight"].T + state["1.bias"], 0)
    out = hidden @ state["3.weight"].T + state["3.bias"]
    labels = adult.labels()[some]
    right = out[np.arange(labels.size), labels]
    return (out.argmax(1) == labels).mean(), (np.logaddexp(out[:, 0], out[:, 1]) - right).mean()


@pytest.mark.slow
def test_the_example_trains_as_it_stands_but_for_its_size(capsys):
    assert cli.main(["init"]) == 0
    example = capsys.readouterr().out
    text = example.replace("steps = 1000", "steps = 60").replace('"pld"', '"rdp"')
    assert text != example
    Path("config.toml").write_text(text, encoding="utf-8")
    done = call("train", "config.toml")
    assert (done.returncode, done.stderr) == (0, "")
    folder = Path("privypurse-run")
    plan = pp.Plan.load(folder / "plan.json")
    assert (plan.method, plan.steps, plan.records) == ("sample", 60, 32_561)
    assert (plan.spent() <= plan.epsilon).all()
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    accuracy, loss = score_of(folder, datasets.adult().test)
    assert metrics["test"]["records"] == 16_281
    assert metrics["test"]["accuracy"] == pytest.approx(accuracy, abs=2e-4)
    assert metrics["test"]["loss"] == pytest.approx(loss, rel=1e-4)
    # It has learned something: always saying "no" is right for 76.4 % and costs 0.547.
    assert accuracy > 0.79
    assert loss < 0.45
    words = " ".join(done.stdout.split())
    printed = re.search(r"test accuracy ([0-9.]+) ?%", words)
    assert printed is not None
    assert float(printed[1]) / 100 == pytest.approx(accuracy, abs=1e-3)
    assert "16,281 records that took no part in training" in words
    assert "Budgets are simulated" in words
    assert "ε certified" in words
    assert "keep them as safe as the data" in words
    assert cli.main(["train", "config.toml"]) == 2
    assert "spends everyone's ε again" in capsys.readouterr().err


@pytest.mark.slow
def test_a_table_with_persons_and_a_network_of_ones_own():
    random = np.random.default_rng(0)
    for name, size, first in (("people.csv", 200, 0), ("others.csv", 100, 100)):
        x = random.uniform(-1, 1, size)
        rows = [f"{v:.3f},{'yes' if v > 0 else 'no'},{'ab'[i // 2 % 2]},{first + i // 2}" for i, v in enumerate(x)]
        Path(name).write_text("x,answer,consent,id\n" + "\n".join(rows) + "\n", encoding="utf-8")
    Path("nets.py").write_text("import torch\ndef build(width):\n    return torch.nn.Linear(1, width)\n")
    Path("run.toml").write_text(
        """
[data]
table = "people.csv"
test = "others.csv"
label = "answer"
classes = ["no", "yes"]
features = { x = { low = -1, high = 1, indicator = false } }
[budgets]
level = "consent"
levels = { a = 4, b = 8 }
person = "id"
[plan]
steps = 40
batch_size = 30
accountant = "rdp"
[model]
kind = "nets:build"
options = { width = 2 }
[optimizer]
name = "SGD"
lr = 2.0
[training]
out = "mine"
checkpoint = "mine/checkpoint"
""",
        encoding="utf-8",
    )
    done = call("train", "run.toml")
    assert (done.returncode, done.stderr) == (0, "")
    metrics = json.loads(Path("mine/metrics.json").read_text(encoding="utf-8"))
    assert [(row["people"], row["epsilon"]) for row in metrics["sensitive"]["levels"]] == [(50, 4.0), (50, 8.0)]
    assert metrics["test"]["accuracy"] > 0.9
    assert "100 people with 200 records" in done.stdout
    assert Path("mine/checkpoint").is_dir()


def begun(arguments):
    """A command in a process of its own, running; one that can be interrupted, as in a terminal."""
    code = (
        "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from privypurse.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
def test_ctrl_c_ends_a_run_between_steps_and_the_same_command_goes_on():
    rows = [f"{i % 7 / 7:.3f},{'yes' if i % 7 > 3 else 'no'},2" for i in range(60)]
    Path("people.csv").write_text("x,answer,epsilon\n" + "\n".join(rows) + "\n", encoding="utf-8")
    Path("run.toml").write_text(
        """
[data]
table = "people.csv"
label = "answer"
classes = ["no", "yes"]
features = { x = { low = 0, high = 1 } }
[budgets]
epsilon = "epsilon"
[plan]
steps = 400
batch_size = 20
accountant = "rdp"
[model]
kind = "mlp"
hidden = [4]
[optimizer]
name = "SGD"
lr = 0.1
[training]
out = "mine"
checkpoint = "kept"
""",
        encoding="utf-8",
    )
    journal = Path("kept/steps")
    for more in (1, 3):  # twice, the second time in a run that went on
        before, process = steps_on_disk(journal), begun(["train", "run.toml"])
        while steps_on_disk(journal) <= before + more and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 130
        assert err == "stopped; steps that were taken stay counted, and the same command goes on from kept\n"
        saved = torch.load("kept/checkpoint.pt", weights_only=True)["run"]["steps_taken"]
        assert before < saved < 400
        assert saved == steps_on_disk(journal)  # every step that is counted is in the model that was kept
    assert not Path("mine/model.pt").exists()
    done = call("train", "run.toml")
    assert done.returncode == 0
    assert "400 steps taken" in done.stdout
    assert json.loads(Path("mine/metrics.json").read_text(encoding="utf-8"))["steps"] == 400
    assert steps_on_disk(journal) == 400


def test_ctrl_c_without_a_checkpoint_says_that_nothing_was_kept(capsys, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    Path("config.toml").write_text(cli.train.example(), encoding="utf-8")
    monkeypatch.setattr("privypurse.runs.training_run.train_by", stopped)
    assert cli.main(["train", "config.toml"]) == 130
    assert capsys.readouterr().err == "stopped; nothing was kept, for [training] names no checkpoint folder\n"
    monkeypatch.setattr(cli.plan.pp.Budgets, "read", stopped)
    assert cli.main(["plan", "people.csv", "--steps", "1", "--batch-size", "1"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_wrong_file_is_one_line_that_says_what_to_do(capsys):
    assert cli.main(["train", "nothing.toml"]) == 2
    assert "privypurse init" in capsys.readouterr().err
    Path("wrong.toml").write_text('[data]\nname = "adult"\n[bugdets]\n', encoding="utf-8")
    assert cli.main(["train", "wrong.toml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: wrong.toml: there is no section 'bugdets'; did you mean 'budgets'")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["torch", "cryptography"])
def test_without_the_extra_the_error_says_what_to_install(missing):
    Path("config.toml").write_text(cli.train.example(), encoding="utf-8")
    for arguments in (["demo"], ["train", "config.toml"]):
        done = call(*arguments, before=f"sys.modules[{missing!r}] = None")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f"error: privypurse {arguments[0]} needs {missing}: pip install '.[training]' in a clone\n"
        )
    assert not Path("privypurse-run").exists()


@pytest.mark.slow
def test_what_needs_no_training_needs_no_torch():
    for arguments in (["train", "--help"], ["init"], ["demo", "--help"]):
        done = call(*arguments, before="sys.modules['torch'] = None")
        assert (done.returncode, done.stderr) == (0, "")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    for word in (
        "[data]",
        "[budgets]",
        "simulate",
        "privypurse init",
        "EXECUTES ITS CODE",
        "never from its rows",
    ):
        assert word in text


@pytest.mark.slow
@pytest.mark.needs("report")
def test_the_demo_trains_five_ways_few_people_and_many():
    done = call("demo", "--steps", "20", "--runs", "2")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [re.split(r"\s*│\s*", line.strip("│ ")) for line in done.stdout.splitlines() if line.startswith("│")]
    methods = ["uniform", "exclude", "scale", "sample"]
    assert [row[0] for row in rows] == 2 * [*methods, "none", *methods]
    words = " ".join(done.stdout.split())
    for said in ("a branch of 3,000 people", "all 32,561 people", "16,281 other people, none of whom", "sensitive"):
        assert said in words
    for first, name, people in ((0, "branch", 3_000), (9, "whole", 32_561)):
        plans = {row[0]: np.array([float(cell) for cell in row[1:]]) for row in rows[first + 5 : first + 9]}
        for method, (noise, ratio, *spent) in plans.items():
            assert (np.array(spent) <= [0.1, 1, 5]).all()
            plan = pp.Plan.load(f"privypurse-demo/{name}/{method}/plan.json")
            assert (plan.method, plan.steps, plan.people) == (method, 20, people)
            assert (plan.spent() <= plan.epsilon).all()
            assert noise == pytest.approx(plan.noise_multiplier, abs=0.01)
            weight = (plan.rates * plan.clip_norms).sum()
            assert ratio == pytest.approx(weight / (plan.noise_multiplier * plan.clip_norm), abs=0.1)
            counts = [int((plan.epsilon == level).sum()) for level in (0.1, 1, 5)]
            assert np.abs(np.array(counts) / people - [0.7, 0.2, 0.1]).max() < 1e-3
        assert (plans["sample"][2:] >= 0.99 * np.array([0.1, 1, 5])).all()
        assert (plans["exclude"][2:4] == 0).all()
        for row in rows[first : first + 5]:
            folder = Path("privypurse-demo") / name / row[0]
            assert (folder / "plan.json").exists() == (row[0] != "none")
            assert float(row[1].split()[0]) > 70
            metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            assert metrics["test"]["records"] == 16_281
            assert ("sensitive" in metrics) == (row[0] != "none")
            found = pp.verify(folder)
            assert found.sound, str(found)
            assert ("certified ε" in {each.what for each in found.of("fits")}) == (row[0] != "none")
    for name in ("report.html", "report-internal.html"):
        assert str((Path("privypurse-demo") / name).resolve()) in done.stdout
        assert "</html>" in (Path("privypurse-demo") / name).read_text(encoding="utf-8")
    # A demo may follow a demo, but nothing else is written over.
    (Path("privypurse-demo") / "thesis.txt").write_text("mine", encoding="utf-8")
    assert cli.main(["demo"]) == 2


@pytest.mark.parametrize("option", ["runs", "steps", "jobs"])
def test_a_demo_of_nothing_is_refused(capsys, option):
    assert cli.main(["demo", f"--{option}", "0"]) == 2
    assert f"{option} must be" in capsys.readouterr().err
