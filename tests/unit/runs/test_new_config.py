"""`privypurse init`: a configuration from names alone, which `train` takes once its blanks are filled in."""

import datetime
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privypurse as pp
from command_line import done, run
from privypurse.datasets.encoding import Categories, Dates, Flag, Range
from privypurse.runs.config import example, parse_config
from privypurse.runs.data_dictionary import read_dictionary
from privypurse.runs.new_config import Roles, names_of, new_config

HEADER = "customer_id,age,job,joined on,member,notes,consent,left"
SECRETS = ["zebra-7731", "41.125", "astronomer", "2019-03-07", "maybe", "plugh xyzzy", "strictest", "perhaps"]
DICTIONARY = """\
column,kind,low,high,categories,log,description
age,number,17,90,,,in years
job,,,,clerk | farmer|teacher,,
joined on,date,2015-01-01,2025-12-31,,,
member,flag,,,,,
notes,none,,,,,free text
left,category,,,no|yes,,
"""


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    Path("people.csv").write_text(f"{HEADER}\n{','.join(SECRETS)}\n", encoding="utf-8")
    Path("columns.csv").write_text(DICTIONARY, encoding="utf-8")


def test_names_alone_decide(capsys):
    """Whatever stands below the first line, even if it is no text at all."""
    whole = done(capsys, "init people.csv")
    for rest in (b"", b"\xff\xfe\x00\n" * 9, b'"never closed\n1,2', SECRETS[0].encode() * 9000):
        Path("people.csv").write_bytes(f"{HEADER}\n".encode() + rest)
        assert done(capsys, "init people.csv") == whole
    assert not any(secret in whole for secret in SECRETS)


def test_a_table_is_not_opened_for_more_than_its_first_line(monkeypatch):
    with open("people.csv", "ab") as file:
        file.write(b"x,x\n" * 1_000_000)

    def refuse(*arguments, **options):
        raise AssertionError("Arrow would look at cells")

    monkeypatch.setattr(pp.budgets.tables.pyarrow.csv, "open_csv", refuse)
    monkeypatch.setattr(pp.budgets.tables.pyarrow.csv, "read_csv", refuse)
    assert names_of(Path("people.csv")) == HEADER.split(",")


def filled(text):
    """With what a user would write."""
    changes = {
        "label": '"left"',
        "classes": '["no", "yes"]',
        "age": "{ low = 17, high = 90 }",
        "job": '["clerk", "farmer", "teacher"]',
        '"joined on"': "{ low = 2015-01-01, high = 2025-12-31 }",
        "member": '"flag"',
        "levels": "{ strict = 1.0, relaxed = 3.0 }",
    }
    for key, value in changes.items():
        text, times = re.subn(rf'(?m)^{key} = "FILL IN"', lambda _, key=key, value=value: f"{key} = {value}", text)
        assert times == 1
    return re.sub(r'(?m)^(notes|left) = "FILL IN"\n', "", text)


FEATURES = {
    "age": Range(17, 90),
    "job": Categories(("clerk", "farmer", "teacher")),
    "joined on": Dates(datetime.date(2015, 1, 1), datetime.date(2025, 12, 31)),
    "member": Flag(),
}


def test_filled_in_it_is_a_configuration(capsys):
    config = parse_config(filled(done(capsys, "init people.csv")))
    assert dict(config.data.features) == FEATURES
    assert (config.data.table, config.data.label, config.data.classes) == (Path("people.csv"), "left", ("no", "yes"))
    assert (config.data.person, config.budgets.level) == ("customer_id", "consent")
    assert config.budgets.levels == {"strict": 1.0, "relaxed": 3.0}


def test_what_it_offers_in_comments_is_taken_too(capsys):
    """Each line that is commented out, one at a time."""
    text = filled(done(capsys, "init people.csv"))
    offered = re.findall(r"(?m)^# ([a-z_]+ = .*?)(?:  #.*)?$", text)
    assert {line.split(" = ")[0] for line in offered} >= {"ledger", "held_out", "test", "missing", "at_most", "seed"}
    for line in offered:
        more = "held_out = { share = 0.2 }\n" if line.startswith("plots") else ""
        needs = '\ntest = "others.csv"' if line.startswith("measured") else ""
        if line.startswith(
            ("region", "range", "level", "share", "controller")
        ):  # of a section that is commented out too, or instead of another
            continue
        parse_config(text.replace(f"# {line}", f"{line}{needs}").replace("[data]\n", f"[data]\n{more}"))
    parse_config(text.replace("# [data.groups]", "[data.groups]").replace("# region", "region"))
    about = text.replace("# [about]", "[about]").replace("# purpose", "purpose").replace("# controller", "controller")
    assert parse_config(about).training.purpose == "to keep customers"
    assert parse_config(about).about.controller == "Bank of Oslo"
    shared = text.replace("# [private_ranges]", "[private_ranges]").replace("# share", "share")
    for asked in re.findall(r"(?m)^#   (?:ends|categories) +(\{.*?\})", text):
        found = parse_config(re.sub(r"(?m)^(\[data.features\]\n\w+ = ).*", rf"\1{asked}", shared))
        assert len(found.data.estimated) == 1
        assert found.private_ranges.share == 0.05


def test_a_dictionary_and_options_leave_one_blank(capsys):
    said = done(capsys, "init people.csv --dictionary columns.csv --label left -o config.toml")
    assert said == "written to config.toml; 1 place to fill in\n"
    text = Path("config.toml").read_text(encoding="utf-8")
    assert "# notes is left out" in text
    with pytest.raises(pp.InvalidInput) as left:
        parse_config(text)
    lines = text.splitlines()
    number = 1 + next(place for place, line in enumerate(lines) if line.startswith("levels"))
    assert str(left.value).startswith(
        f"line {number}: levels under [budgets] is still to be filled in; give the ε of"
    )
    assert "\n" not in str(left.value)
    config = parse_config(text.replace('levels = "FILL IN"', "levels = { strict = 1 }"))
    assert dict(config.data.features) == FEATURES
    assert config.data.classes == ("no", "yes")


def test_every_blank_is_named_by_line_key_and_mend(capsys):
    text = done(capsys, "init people.csv")
    Path("config.toml").write_text(text, encoding="utf-8")
    code, out, error = run(capsys, "train config.toml")
    assert (code, out) == (2, "")
    blanks = {
        number: line.split(" = ")[0].strip('"')
        for number, line in enumerate(text.splitlines(), 1)
        if "FILL IN" in line and not line.startswith("#")
    }
    assert set(blanks.values()) == {
        "label",
        "classes",
        "age",
        "job",
        "joined on",
        "member",
        "notes",
        "left",
        "levels",
    }
    for number, key in blanks.items():
        assert re.search(rf"line {number}: {key} under \[[a-z.]+\] is still to be filled in; (give|see line)", error)
    assert "config.toml" in error
    assert "remove the line, and the column is not used" in error


def test_a_number_to_learn_by_its_range(capsys):
    text = done(capsys, "init people.csv --dictionary columns.csv --label age --epsilon consent")
    for lines in (text, text.replace("{ low = 17, high = 90 }", "{ low = 17, high = 90, log = true }", 1)):
        config = parse_config(lines)
        assert config.data.classes is None
        assert (config.data.range.low, config.data.range.high) == (17, 90)
        assert config.budgets.epsilon == "consent"
        assert "age" not in config.data.features
        assert config.optimizer.options["lr"] == 0.1


def test_parquet_states_kinds():
    columns = {
        "age": pa.array([41.125]),
        "rooms": pa.array([3]),
        "job": pa.array(["astronomer"]).dictionary_encode(),
        "joined": pa.array([datetime.date(2019, 3, 7)]),
        "seen": pa.array([datetime.datetime(2019, 3, 7)]),
        "member": pa.array([True]),
        "epsilon": pa.array([0.25]),
    }
    pq.write_table(pa.table(columns), "people.parquet")
    text = new_config(Path("people.parquet"), {}, Roles())
    blank = '"FILL IN"'
    for line in (
        f"age = {{ low = {blank}, high = {blank} }}",
        f"rooms = {{ low = {blank}, high = {blank} }}",
        f"job = [{blank}]",
        f'joined = {{ kind = "date", low = {blank}, high = {blank} }}',
        f'seen = {{ kind = "date", low = {blank}, high = {blank} }}',
        'member = "flag"',
        'epsilon = "epsilon"  # by its name: check it',
        f"person = {blank}",
    ):
        assert line in text.splitlines()
    assert not any(each in text for each in ("astronomer", "41", "0.25", "2019"))


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("ID,x", 'person = "ID"'),
        ("customer id,x", 'person = "customer id"'),
        ("Patient_ID,x", 'person = "Patient_ID"'),
        ("id,user_id", 'person = "FILL IN"'),  # which of them?
        ("x,y", 'epsilon = "FILL IN"'),
        ("EPSILON,consent", 'epsilon = "EPSILON"'),
        ("Consent level,x", 'level = "Consent level"'),
    ],
)
def test_columns_that_are_called_so(names, line):
    Path("some.csv").write_text(names, encoding="utf-8")
    found = new_config(Path("some.csv"), {}, Roles()).splitlines()
    assert any(each.partition("  #")[0] == line for each in found)


def test_names_of_every_kind_are_written_so_that_they_are_read_back():
    odd = ["a b", 'quo"ted', "back\\slash", "två", "a.b", "#1 rank", "{x}", "line\nbreak", "'", "[x]"]
    quoted = ['"' + each.replace('"', '""') + '"' for each in odd]
    Path("odd.csv").write_text(",".join(quoted) + "\r\n1,2\r\n", encoding="utf-8-sig")
    assert names_of(Path("odd.csv")) == odd
    text = new_config(Path("odd.csv"), {name: ["a", "b"] for name in odd}, Roles(label="a b", epsilon="a.b"))
    config = parse_config(text.replace('person = "FILL IN"\n', ""))
    assert list(config.data.features) == [each for each in odd if each not in ("a b", "a.b")]


REFUSED = {
    "no table": ("init nothing.csv", ["nothing.csv does not exist"]),
    "no header": ("init bare.csv", ["first line of bare.csv", "column 2"]),
    "an empty name": ("init gap.csv", ["first line of gap.csv", "column 2"]),
    "twice": ("init twice.csv", ["first line of twice.csv", "column 1", "each differently"]),
    "nothing": ("init void.csv", ["first line of void.csv"]),
    "not UTF-8": ("init latin.csv", ["latin.csv cannot be read", "UTF-8"]),
    "another ending": ("init people.txt", ["people.txt is neither .csv nor .parquet"]),
    "no such label": ("init people.csv --label Left", ["--label: people.csv has no column 'Left'", "'left'"]),
    "grants elsewhere": (
        "init people.csv --level choice",
        ["--level: people.csv has no column 'choice'", "--consents FILE"],
    ),
    "not there either": (
        "init people.csv --consents consents.csv --level chosen",
        ["--level: consents.csv has no column 'chosen'", "did you mean 'choice'"],
    ),
    "other ids": (
        "init people.csv --person age --consents consents.csv",
        ["--person: --consents consents.csv has no column 'age'", "one name in both files"],
    ),
    "two grants": ("init people.csv --epsilon age --level consent", ["--epsilon age", "--level consent", "keep one"]),
    "label alone": ("init --label left", ["--label left goes with a table"]),
    "it is there": ("init people.csv -o people.csv", ["--out people.csv exists"]),
    "no folder": ("init people.csv -o no/config.toml", ["no/config.toml cannot be written"]),
    "no dictionary": ("init people.csv --dictionary no.csv", ["--dictionary no.csv cannot be read", "No such file"]),
    "dictionary's ending": ("init people.csv --dictionary a.txt", ["--dictionary a.txt", ".toml"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_argument_and_the_mend_and_no_cell(capsys, case):
    rows = {"bare.csv": ",".join(SECRETS), "gap.csv": "a,,b", "twice.csv": "a,b,a", "void.csv": "", "people.txt": "a"}
    rows["consents.csv"] = "customer_id,choice\nzebra-7731,strictest"
    for name, text in rows.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("latin.csv").write_bytes("zebra-7731,\xc5\n".encode("latin-1"))
    line, words = REFUSED[case]
    code, out, error = run(capsys, line)
    assert (code, out) == (2, "")
    for word in words:
        assert word in error
    assert not any(secret in error for secret in SECRETS)
    assert Path("people.csv").read_text(encoding="utf-8").startswith(HEADER)


def test_grants_in_a_file_of_their_own(capsys):
    """Filled in it is a configuration that joins them by id; a column of the same name in the table is not meant."""
    header = HEADER.replace("consent", "notes on it")
    Path("people.csv").write_text(f"{header}\n{','.join(SECRETS)}\n", encoding="utf-8")
    Path("consents.csv").write_text("consent,customer_id\nstrictest,zebra-7731\n", encoding="utf-8")
    text = done(capsys, "init people.csv --consents consents.csv")
    assert not any(secret in text for secret in SECRETS)
    config = parse_config(filled(text.replace('"notes on it" = "FILL IN"\n', "")))
    assert (config.budgets.table, config.budgets.level) == (Path("consents.csv"), "consent")
    assert config.budgets.person == config.data.person == "customer_id"
    assert 'epsilon = "notes on it"' in done(
        capsys, "init people.csv --epsilon 'notes on it'"
    )  # the table's own, where no other file is named
    assert run(capsys, "init people.csv --consents consents.csv --epsilon 'notes on it'")[0] == 2


def test_the_one_column_that_two_files_share_has_the_ids(capsys):
    Path("people.csv").write_text("account_no,age,left\n", encoding="utf-8")
    Path("consents.csv").write_text("account_no,consent\n", encoding="utf-8")
    text = done(capsys, "init people.csv --consents consents.csv --label left")
    assert 'person = "account_no"' in text
    Path("consents.csv").write_text("account_no,age,consent\n", encoding="utf-8")  # two: nobody knows which
    assert 'person = "account_no"' not in done(capsys, "init people.csv --consents consents.csv --label left")


def test_a_line_of_a_dictionary_that_the_table_has_no_column_for_is_named(capsys):
    told = DICTIONARY.replace("age,number", "agee,number") + "of another table,number,0,1,,,\n"
    Path("columns.csv").write_text(told, encoding="utf-8")
    code, out, error = run(capsys, "init people.csv --dictionary columns.csv")
    assert code == 0
    assert 'age = "FILL IN"' in out
    assert error.splitlines() == [
        "--dictionary columns.csv tells of 'agee', and people.csv has no such column: did you mean 'age'? "
        "it is passed over",
        "--dictionary columns.csv tells of 'of another table', and people.csv has no such column: it is passed over",
    ]
    assert "agee" not in out


def test_without_a_table_it_is_the_example(capsys):
    assert done(capsys, "init") == example()
    assert done(capsys, "init -o example.toml") == "written to example.toml\n"
    assert Path("example.toml").read_text(encoding="utf-8") == example()
    parse_config(example())


def test_a_dictionary_in_toml_is_that_in_csv():
    Path("columns.toml").write_text(
        'age = { low = 17, high = 90, kind = "number" }\njob = ["clerk", "farmer", "teacher"]\n'
        '"joined on" = { kind = "date", low = 2015-01-01, high = 2025-12-31 }\nmember = { kind = "flag" }\n'
        'notes = "none"\nleft = ["no", "yes"]\n',
        encoding="utf-8",
    )
    assert read_dictionary(Path("columns.toml")) == read_dictionary(Path("columns.csv"))


def test_a_flag_in_words_of_its_own(capsys):
    Path("people.csv").write_text("id,consent,smoker,left\n", encoding="utf-8")
    Path("columns.csv").write_text(
        "column,kind,categories\nsmoker,flag,nein|ja\nleft,flag,stays|goes\n", encoding="utf-8"
    )
    text = done(capsys, "init people.csv --dictionary columns.csv --label left")
    config = parse_config(text.replace('levels = "FILL IN"', "levels = { strict = 1.0 }"))
    smoker = config.data.features["smoker"]
    assert (smoker.false, smoker.true) == (("nein",), ("ja",))
    assert config.data.target.classes == ("stays", "goes")


def test_a_dictionary_may_have_people_asked(capsys):
    lines = ('age = { range = "estimated", within = [0, 200] }', 'job = { values = "estimated" }', 'member = "flag"')
    rest = ('"joined on" = "none"', 'notes = "none"', 'left = ["no", "yes"]')
    Path("columns.toml").write_text("\n".join([*lines, *rest]), encoding="utf-8")
    text = done(capsys, "init people.csv --dictionary columns.toml --label left")
    config = parse_config(text.replace('levels = "FILL IN"', "levels = { strict = 1.0 }"))
    assert set(config.data.estimated) == {"age", "job"}
    assert config.private_ranges.share == 0.05


WRONG_DICTIONARIES = {
    "no column": ("name,kind\nage,number\n", ["--dictionary wrong.csv has no column 'column'", "categories"]),
    "no name": ("column,kind\n,number\n", ["line 2 names no column"]),
    "twice": ("column,kind\nage,number\nage,flag\n", ["line 3", "'age' stands there twice"]),
    "unknown kind": ("column,kind\nage,numeric\n", ["age: there is no kind 'numeric'", "did you mean 'number'"]),
    "a flag of one word": ("column,kind,categories\nage,flag,old\n", ["line 2", "two words", "no|yes"]),
    "half a range": ("column,low\nage,3\n", ["age is {'low': 3}"]),
    "an empty range": ("column,low,high\nage,3,3\n", ["age", "low < high"]),
    "no number": ("column,low,high\nage,a,3\n", ["line 2: low is 'a'; give a number"]),
    "log": ("column,low,high,log\nage,0,3,maybe\n", ["line 2: log is 'maybe'"]),
    "listed twice": ("column,categories\njob,a|a\n", ["job", "listed twice"]),
}


@pytest.mark.parametrize("case", WRONG_DICTIONARIES)
def test_a_wrong_dictionary_is_told_by_its_place(capsys, case):
    text, words = WRONG_DICTIONARIES[case]
    Path("wrong.csv").write_text(text, encoding="utf-8")
    code, _, error = run(capsys, "init people.csv --dictionary wrong.csv")
    assert code == 2
    for word in words:
        assert word in error


def test_a_blank_in_a_comment_or_in_a_name_is_none():
    text = example().replace("[data]", '[data]  # "FILL IN"', 1) + '\n# lr = "FILL IN"\n'
    parse_config(text)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_another_mark_between_cells_is_named(tmp_path, mark):
    table = tmp_path / "people.csv"
    table.write_text(f"id{mark}age\n7{mark}1,5\n", encoding="utf-8")
    with pytest.raises(pp.InvalidInput, match="separated by commas"):
        names_of(table)
