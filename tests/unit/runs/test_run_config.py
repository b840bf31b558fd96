"""Configurations: what each key comes to, and errors that name the key and the mend."""

import tomllib
from datetime import date
from pathlib import Path

import pytest

import privypurse as pp
from privypurse.datasets.encoding import Categories, Dates, Flag, Range
from privypurse.datasets.targets import Classes, Flags, Number
from privypurse.runs import config
from privypurse.runs.config import parse_config
from privypurse.runs.planning import granted

BUILT_IN = """
[data]
name = "adult"
[budgets]
simulate = { epsilon = [1.0, 2], shares = [0.6, 0.4], seed = 3 }
[plan]
steps = 10
batch_size = 64
[model]
kind = "mlp"
[optimizer]
name = "SGD"
lr = 0.5
"""

TABLE = """
[data]
table = "people.csv"
test = "others.csv"
label = "income"
classes = ["low", "high"]
[data.features]
age = { low = 17, high = 90 }
gain = { low = 0, high = 1e5, log = true }
sex = ["F", "M"]
grade = [1, 2, 3]
[budgets]
level = "consent"
levels = { strict = 1, relaxed = 3.0 }
person = "id"
delta = "failure"
[plan]
method = "exclude"
threshold = 2
steps = 10
batch_size = 64
clip_norm = 2
noise_multiplier = 1.5
accountant = "rdp"
[model]
kind = "nets:build"
[model.options]
width = 3
deep = true
[optimizer]
name = "Adam"
lr = 1e-3
betas = [0.9, 0.99]
[training]
out = "results/first"
max_physical_batch = 32
max_records_per_person = 2
checkpoint = "saved"
checkpoint_every = 5
device = "cpu"
seed = 7
"""


def test_a_small_file_takes_the_defaults():
    read = parse_config(BUILT_IN)
    assert read.data == config.BuiltIn("adult")
    assert read.budgets == config.Grants(simulate=config.Simulated((1.0, 2.0), (0.6, 0.4), 3))
    assert set(granted(read.budgets, None, 10)[0].delta.tolist()) == {1e-5}
    assert read.plan == config.NewPlan(steps=10, batch_size=64)
    assert (read.plan.method, read.plan.accountant, read.plan.noise_multiplier) == ("sample", "pld", None)
    assert read.model == config.Model("mlp", (64,), "relu", {})
    assert read.optimizer == config.Optimizer("SGD", {"lr": 0.5})
    assert read.training == config.Training()


def test_every_key_arrives():
    read = parse_config(TABLE)
    assert read.data == config.Table(
        table=Path("people.csv"),
        label="income",
        classes=("low", "high"),
        features={
            "age": Range(17, 90),
            "gain": Range(0, 1e5, log=True),
            "sex": Categories(("F", "M")),
            "grade": Categories(("1", "2", "3")),
        },
        test=Path("others.csv"),
        person="id",
    )
    elsewhere = TABLE.replace('person = "id"\n', "").replace('label = "inc', 'person = "id"\nlabel = "inc')
    assert parse_config(elsewhere) == read
    assert read.budgets.delta == "failure"
    assert parse_config(BUILT_IN).budgets.delta is None
    assert read.budgets == config.Grants(
        level="consent", levels={"strict": 1.0, "relaxed": 3.0}, person="id", delta="failure"
    )
    assert read.plan == config.NewPlan(
        steps=10,
        batch_size=64,
        method="exclude",
        threshold=2.0,
        clip_norm=2.0,
        noise_multiplier=1.5,
        accountant="rdp",
    )
    assert read.model == config.Model("nets:build", options={"width": 3, "deep": True})
    assert read.optimizer == config.Optimizer("Adam", {"lr": 1e-3, "betas": [0.9, 0.99]})
    assert read.training == config.Training(
        out=Path("results/first"),
        max_physical_batch=32,
        max_records_per_person=2,
        checkpoint=Path("saved"),
        checkpoint_every=5,
        device="cpu",
        seed=7,
    )


def test_a_plan_may_be_a_file_and_then_budgets_may_be_left_to_it():
    text = 'plan = "plan.json"\n' + BUILT_IN.replace("[plan]\nsteps = 10\nbatch_size = 64\n", "")
    assert parse_config(text).plan == Path("plan.json")
    lines = [line for line in text.splitlines() if "budgets" not in line and "simulate" not in line]
    assert parse_config("\n".join(lines)).budgets is None


def test_the_example_is_whole_and_says_everything_that_there_is():
    text = config.example()
    read = parse_config(text)
    assert read.data == config.BuiltIn("adult")
    assert read.training.seed is None
    # Each commented key, put in place of what it stands for, is one that is known.
    words = {line.strip("# ").split(" ")[0] for line in text.splitlines() if " = " in line}
    known = {line.split(" ")[0] for line in TABLE.splitlines() if " = " in line}
    assert known - words <= {"threshold", "deep", "grade", "betas", "max_records_per_person"}
    assert tomllib.loads(text)["optimizer"]["lr"] == 0.3


WHY = "no budget pays for"
BAD = {
    "no TOML": (BUILT_IN + "= 3", ["no TOML", "line 14"]),
    "unknown section": (BUILT_IN.replace("[optimizer]", "[optimiser]"), ["'optimiser'", "did you mean 'optimizer'"]),
    "missing section": (BUILT_IN.replace('[model]\nkind = "mlp"\n', ""), ["[model] is missing", "privypurse init"]),
    "missing budgets": (
        "\n".join(line for line in BUILT_IN.splitlines() if "budgets" not in line and "simulate" not in line),
        ["[budgets] is missing"],
    ),
    "unknown key": (
        BUILT_IN.replace("batch_size", "batchsize"),
        ["[plan]", "'batchsize'", "mean 'batch_size'"],
    ),
    "section as value": ("model = 3\n" + BUILT_IN.replace('[model]\nkind = "mlp"', ""), ["[model] is 3", "section"]),
    "no steps": (BUILT_IN.replace("steps = 10\n", ""), ["[plan]: give steps", "or epochs"]),
    "no batch size": (BUILT_IN.replace("batch_size = 64\n", ""), ["[plan] needs batch_size"]),
    "steps and epochs": (
        BUILT_IN.replace("steps = 10", "steps = 10\nepochs = 2"),
        ["[plan]: give steps", "not both"],
    ),
    "no others to validate on": (
        TABLE.replace('test = "others.csv"\n', "").replace("checkpoint_every = 5", "validate_every = 5"),
        ["[training] validate_every needs test or held_out under [data]"],
    ),
    "text for a number": (BUILT_IN.replace("steps = 10", 'steps = "10"'), ["[plan] steps is '10'", "whole number"]),
    "fraction of a step": (BUILT_IN.replace("steps = 10", "steps = 1.5"), ["steps is 1.5", "whole number"]),
    "true for a number": (BUILT_IN.replace("steps = 10", "steps = true"), ["steps is True", "whole number"]),
    "method": (
        BUILT_IN.replace("steps = 10", 'steps = 10\nmethod = "sampel"'),
        ["'sampel'", "mean 'sample'"],
    ),
    "threshold": (BUILT_IN.replace("steps = 10", "steps = 10\nthreshold = 1"), ["threshold", "exclude", "'sample'"]),
    "data set": (BUILT_IN.replace('"adult"', '"adults"'), ["'adults'", "did you mean 'adult'"]),
    "no data": (BUILT_IN.replace('name = "adult"\n', ""), ["[data]", "either name", "or table"]),
    "two data": (BUILT_IN.replace('"adult"', '"adult"\ntable = "x.csv"'), ["either name", "or table"]),
    "key of a table": (BUILT_IN.replace('"adult"', '"adult"\nlabel = "x"'), ["[data] has no key 'label'"]),
    "nobody was asked": (
        BUILT_IN.replace("simulate = { epsilon = [1.0, 2], shares = [0.6, 0.4], seed = 3 }", 'epsilon = "epsilon"'),
        ["[budgets]", "'adult'", "simulate = {"],
    ),
    "half a simulation": (
        BUILT_IN.replace(", shares = [0.6, 0.4]", ""),
        ["simulate needs shares", "epsilon = [1.0, 2.0], shares"],
    ),
    "simulated seed": (BUILT_IN.replace("seed = 3", "seed = -3"), ["[budgets] simulate seed is -3"]),
    "simulated delta": (
        BUILT_IN.replace("[budgets]", '[budgets]\ndelta = "d"'),
        ["delta is 'd'", "number, such as 1e-5"],
    ),
    "delta": (BUILT_IN.replace("[budgets]", "[budgets]\ndelta = true"), ["delta is True", "a number"]),
    "both budgets": (
        TABLE.replace("[budgets]", "[budgets]\nsimulate = { epsilon = [1], shares = [1] }"),
        ["simulate beside columns"],
    ),
    "two columns of ids": (
        TABLE.replace('label = "inc', 'person = "who"\nlabel = "inc'),
        ["[budgets] person is 'id' but [data] person is 'who'"],
    ),
    "ids as a feature": (
        TABLE.replace('label = "inc', 'person = "sex"\nlabel = "inc').replace('person = "id"\n', ""),
        ["'sex'", "no model may see it"],
    ),
    "no label": (TABLE.replace('label = "income"\n', ""), ["[data]: give label", "or labels"]),
    "no classes": (TABLE.replace('classes = ["low", "high"]\n', ""), ["label needs either classes", "or range", WHY]),
    "one class": (TABLE.replace('["low", "high"]', '["low"]'), ["classes", "at least two"]),
    "double class": (TABLE.replace('["low", "high"]', '["low", "low"]'), ["twice"]),
    "no features": (TABLE[: TABLE.index("[data.features]")] + TABLE[TABLE.index("[budgets]") :], ["features", WHY]),
    "only names of features": (
        TABLE[: TABLE.index("[data.features]")] + 'features = ["age"]\n' + TABLE[TABLE.index("[budgets]") :],
        ["[data.features]", "low = 0", WHY],
    ),
    "feature without a range": (TABLE.replace("{ low = 17, high = 90 }", '"number"'), ["age", "'number'", WHY]),
    "half a range": (TABLE.replace("{ low = 17, high = 90 }", "{ low = 17 }"), ["age", "range", WHY]),
    "range the wrong way": (TABLE.replace("low = 17, high = 90", "low = 90, high = 17"), ["age", "low < high"]),
    "unknown key of a range": (TABLE.replace("low = 17", "lov = 17"), ["age", "'lov'", "did you mean 'low'"]),
    "mean and deviation": (TABLE.replace("low = 17, high = 90", "mean = 38, std = 13"), ["'mean'", "low, high, log"]),
    "classes and a range": (
        TABLE.replace('classes = ["low", "high"]', 'classes = ["low", "high"]\nrange = { low = 0, high = 1 }'),
        ["label needs either classes", "or range"],
    ),
    "label and labels": (
        TABLE.replace('label = "income"', 'label = "income"\nlabels = ["a"]'),
        ["[data]: give label"],
    ),
    "labels with classes": (TABLE.replace('label = "income"', 'labels = ["a"]'), ["labels are true or false"]),
    "labels twice": (
        TABLE.replace('label = "income"\nclasses = ["low", "high"]', 'labels = ["a", "a"]'),
        ["['a', 'a']", "none twice"],
    ),
    "a number's own column as a feature": (
        TABLE.replace('label = "income"\nclasses = ["low", "high"]', 'label = "gain"\nrange = { low = 0, high = 9 }'),
        ["[data]: features holds 'gain', which is what is to be learned"],
    ),
    "one of several labels as a feature": (
        TABLE.replace('label = "income"\nclasses = ["low", "high"]', 'labels = ["ill", "sex"]'),
        ["[data]: features holds 'sex', which is what is to be learned"],
    ),
    "what people granted as a label": (
        TABLE.replace('label = "income"\nclasses = ["low", "high"]', 'labels = ["ill", "consent"]'),
        ["[data] is to learn 'consent', which says who granted what", "another column"],
    ),
    "a target's dates": (
        TABLE.replace('classes = ["low", "high"]', "range = { low = 2020-01-01, high = 2021-01-01 }"),
        ["[data] range", "range of numbers"],
    ),
    "a day and a number": (
        TABLE.replace("low = 17, high", "low = 2020-01-01, high"),
        ["age high is 90", "a date, as in"],
    ),
    "dates the wrong way": (
        TABLE.replace("low = 17, high = 90", "low = 2020-01-01, high = 2019-01-01"),
        ["age", "low < high"],
    ),
    "a form of dates": (
        TABLE.replace("low = 17, high = 90", 'low = 2020-01-01, high = 2021-01-01, form = "%d/%m"'),
        ["age", "'%d/%m'", "%Y, %m and %d"],
    ),
    "kind of a column": (TABLE.replace("{ low = 17,", '{ kind = "nubmer", low = 17,'), ["'nubmer'", "mean 'number'"]),
    "words of a flag": (
        TABLE.replace("{ low = 17, high = 90 }", '{ true = ["y"], false = ["y"] }'),
        ["age", "none twice"],
    ),
    "test and held out": (
        TABLE.replace("label =", "held_out = { share = 0.2 }\nlabel ="),
        ["test beside held_out"],
    ),
    "held out without ids": (
        TABLE.replace('test = "others.csv"', "held_out = { share = 0.2 }").replace('person = "id"\n', ""),
        ["[data] held_out", 'person = "…"'],
    ),
    "share held out": (
        TABLE.replace('test = "others.csv"', "held_out = { share = 20 }"),
        ["[data] held_out", "share must be", "20"],
    ),
    "people held out are public": (
        TABLE.replace('test = "others.csv"', 'held_out = { share = 0.2 }\nmeasured = "public"'),
        ["measured is 'public'", "in a file of their own"],
    ),
    "charged by a file": (
        TABLE.replace("label =", 'measured = "charged"\nlabel ='),
        ["[data] measured", "questions"],
    ),
    "whose test": (TABLE.replace("label =", 'measured = "publik"\nlabel ='), ["'publik'", "did you mean 'public'"]),
    "groups": (TABLE.replace("label =", 'groups = ["sex"]\nlabel ='), ["[data.groups]", "sex = ["]),
    "plateau of a number": (
        TABLE.replace('classes = ["low", "high"]', "range = { low = 0, high = 1 }").replace(
            "clip_norm = 2", 'extra_steps = 4\nstop = { kind = "plateau", noise = 30, most = 4 }'
        ),
        ['[plan] stop with kind "plateau"', "needs classes"],
    ),
    "plots of nothing": (
        TABLE.replace('test = "others.csv"\n', "").replace("seed = 7", "plots = true"),
        ["plots needs test or held_out"],
    ),
    "label as a feature": (TABLE.replace('sex = ["F"', 'income = ["F"'), ["'income'", "learned"]),
    "test on training": (TABLE.replace('"others.csv"', '"people.csv"'), ["test", "another file", "sensitive"]),
    "ε of a level": (TABLE.replace("strict = 1", 'strict = "1"'), ["[budgets] levels strict is '1'", "a number"]),
    "model": (BUILT_IN.replace('"mlp"', '"mpl"'), ["'mpl'", "did you mean 'mlp'", "module:callable"]),
    "model without kind": (BUILT_IN.replace('kind = "mlp"', ""), ["[model] needs kind"]),
    "images wanted": (BUILT_IN.replace('"mlp"', '"cnn"'), ['"cnn"', "needs images", '"mlp"']),
    "layers": (BUILT_IN.replace('"mlp"', '"mlp"\nhidden = 64'), ["hidden is 64", "[64, 32]"]),
    "no width": (BUILT_IN.replace('"mlp"', '"mlp"\nhidden = [8, 0]'), ["hidden", "at least 1"]),
    "activation": (BUILT_IN.replace('"mlp"', '"mlp"\nactivation = "rellu"'), ["did you mean 'relu'"]),
    "options of an mlp": (BUILT_IN.replace('"mlp"', '"mlp"\nwidth = 3'), ["'width'", "hidden"]),
    "optimizer": (BUILT_IN.replace('name = "SGD"\n', ""), ["[optimizer] needs name"]),
    "checkpoint": (BUILT_IN + "[training]\ncheckpoint_every = 3", ["checkpoint_every needs checkpoint"]),
    "seed": (BUILT_IN + "[training]\nseed = -1", ["seed is -1"]),
    "section of data": (
        "data = 3\n" + BUILT_IN.replace('[data]\nname = "adult"\n', ""),
        ["[data] is 3", "inline table"],
    ),
    "number of a data set": (BUILT_IN.replace('"adult"', "3"), ["[data] name", "'3'", "adult, mnist"]),
    "accountant": (BUILT_IN.replace("steps = 10", 'steps = 10\naccountant = "pdl"'), ["accountant", "mean 'pld'"]),
    "list of levels": (
        TABLE.replace("{ strict = 1, relaxed = 3.0 }", "[1, 3]"),
        ["levels is [1, 3]", "table"],
    ),
    "options of a model": (TABLE.replace("[model.options]\nwidth = 3\ndeep = true", "options = 3"), ["options is 3"]),
    "true as a category": (TABLE.replace('["F", "M"]', '[true, "M"]'), ["sex is [True, 'M']", "a list of texts"]),
    "a number for the folder": (BUILT_IN + "[training]\nout = 3", ["[training] out is 3", "text in quotes"]),
    "a number for a flag": (BUILT_IN + "[individual]\nexact = 1", ["[individual] exact is 1", "true or false"]),
    "key of individual": (BUILT_IN + "[individual]\nevry = 3", ["'evry'", "did you mean 'every'"]),
    "key of training": (BUILT_IN + "[training]\nmax_physical_bach = 3", ["did you mean 'max_physical_batch'"]),
}


KINDS_OF_COLUMNS = {
    "{ low = 17, high = 90 }": Range(17, 90),
    '{ kind = "number", low = 17, high = 90, indicator = false }': Range(17, 90, indicator=False),
    "{ low = 2020-01-01, high = 2021-12-31 }": Dates(date(2020, 1, 1), date(2021, 12, 31)),
    '{ low = 2020-01-01, high = 2021-12-31, form = "%d.%m.%Y" }': Dates(
        date(2020, 1, 1), date(2021, 12, 31), "%d.%m.%Y"
    ),
    '"flag"': Flag(),
    '{ true = ["ja"], false = ["nein"] }': Flag(("ja",), ("nein",)),
    '{ kind = "flag" }': Flag(),
    '["a", 7]': Categories(("a", "7")),
    '{ values = ["a", 7], other = false }': Categories(("a", "7"), other=False),
}


@pytest.mark.parametrize("written", KINDS_OF_COLUMNS)
def test_each_kind_of_column_is_read(written):
    read = parse_config(TABLE.replace("{ low = 17, high = 90 }", written))
    assert read.data.features["age"] == KINDS_OF_COLUMNS[written]


def test_each_kind_of_target_is_read():
    label = 'label = "income"\nclasses = ["low", "high"]\n'
    assert parse_config(TABLE).data.target == Classes("income", ("low", "high"))
    number = parse_config(TABLE.replace(label, 'label = "income"\nrange = { low = 0, high = 9e4, log = true }\n'))
    assert number.data.target == Number("income", Range(0, 9e4, log=True))
    flags = parse_config(TABLE.replace(label, 'labels = ["ill", "old"]\nmissing = ["NA", -99]\n')).data
    assert flags.target == Flags(("ill", "old"))
    assert flags.encoder.missing == ("NA", "-99")
    assert list(flags.encoder.columns) == ["age", "gain", "sex", "grade"]


@pytest.mark.parametrize("case", BAD)
def test_what_a_file_cannot_mean_is_named(case):
    text, words = BAD[case]
    assert text not in (BUILT_IN, TABLE)
    with pytest.raises(pp.InvalidInput) as caught:
        parse_config(text)
    for word in words:
        assert word in str(caught.value)


def test_errors_of_a_file_name_it(tmp_path):
    with pytest.raises(pp.InvalidInput, match=r"nothing.toml is no file.*privypurse init -o nothing.toml"):
        config.read_config(tmp_path / "nothing.toml")
    path = tmp_path / "mine.toml"
    path.write_text(BUILT_IN.replace("steps", "stepps"), encoding="utf-8")
    with pytest.raises(pp.InvalidInput, match=r"mine.toml: \[plan\] has no key 'stepps'"):
        config.read_config(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(pp.InvalidInput, match="not UTF-8"):
        config.read_config(path)
    path.write_text(BUILT_IN, encoding="utf-8")
    assert config.read_config(path) == parse_config(BUILT_IN)
