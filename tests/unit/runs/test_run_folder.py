"""The folder of a run: what is public, what is not, and whether it is as it was written."""

import datetime
import hashlib
import json
import platform
from types import SimpleNamespace

import numpy
import pytest
import scipy
import torch

import privypurse as pp
from privypurse import cli
from privypurse.runs.folder import File, RunFolder, check_free

LIBRARIES = (numpy, scipy, torch)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.begin(tmp_path / "run", "train")
    made.add("plan.json", '{"ε": 1}\n')
    made.add("model.pt", lambda file: file.write(b"weights"), public=True)
    return made.path


def lists(folder):
    return [json.loads((folder / name).read_text(encoding="utf-8")) for name in ("run.json", "public.json")]


def test_each_file_is_listed_with_its_digest_and_whether_it_is_public(folder):
    sha256 = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("plan.json", "model.pt")}
    whole, public = lists(folder)
    versions = {"python": platform.python_version(), **{each.__name__: each.__version__ for each in LIBRARIES}}
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    head = {"schema": 1, "privypurse": pp.__version__, "command": "train", "begun": day, "versions": versions}
    model = {"model.pt": {"public": True, "sha256": sha256["model.pt"]}}
    assert whole == {**head, "files": {"plan.json": {"public": False, "sha256": sha256["plan.json"]}, **model}}
    assert public == {**head, "files": model}
    opened = RunFolder.open(folder)
    assert opened.command == "train"
    assert opened.files == {name: File(name == "model.pt", digest) for name, digest in sha256.items()}


def test_the_public_list_tells_nothing_of_internal_files(folder):
    """Not their names, and no digest by which a guess of their content could be proved."""
    text = (folder / "public.json").read_text(encoding="utf-8")
    assert "plan" not in text
    assert hashlib.sha256((folder / "plan.json").read_bytes()).hexdigest() not in text
    assert hashlib.sha256((folder / "run.json").read_bytes()).hexdigest() not in text


def test_a_new_folder_is_its_owners_alone(tmp_path):
    """Others would see how large an internal file is, and so how many levels of balances there are."""
    RunFolder.begin(tmp_path / "runs" / "first", "train")
    assert (tmp_path / "runs" / "first").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("of_the_folder", "public"), [(0o755, 0o644), (0o750, 0o640), (0o700, 0o600)])
def test_what_is_internal_only_its_owner_reads(tmp_path, of_the_folder, public):
    tmp_path.chmod(of_the_folder)
    made = RunFolder.begin(tmp_path, "train")
    made.add("plan.json", "{}")
    made.add("model.pt", "weights", public=True)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"plan.json": 0o600, "run.json": 0o600, "model.pt": public, "public.json": public}


def test_a_file_that_lies_there_already_is_listed_and_hidden(folder):
    (folder / "books").mkdir()
    (folder / "books" / "0").write_text("spent", encoding="utf-8")
    (folder / "books" / "0").chmod(0o644)
    opened = RunFolder.open(folder)
    opened.add("books/0", None)
    assert set(RunFolder.open(folder).files) == {"plan.json", "model.pt", "books/0"}
    assert (folder / "books" / "0").stat().st_mode & 0o077 == 0


def test_everything_that_lies_there_can_be_listed_and_listed_again(tmp_path):
    for name in ("0/book", "1/book", "notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("kept", encoding="utf-8")
    for changed in ("first", "second"):  # a run that goes on
        (tmp_path / "0/book").write_text(changed, encoding="utf-8")
        RunFolder.begin(tmp_path, "federate").add_all()
        files = RunFolder.open(tmp_path).files
        assert {name: file.public for name, file in files.items()} == dict.fromkeys(
            ("0/book", "1/book", "notes"), False
        )


@pytest.mark.slow
@pytest.mark.needs("flower")
def test_books_of_a_federation_are_internal_files_of_a_run(tmp_path, monkeypatch):
    from privypurse.federated import engine

    def train(data, preferences, terms, folder, **options):
        (folder / "0").mkdir()
        (folder / "0" / "book").write_text("spent", encoding="utf-8")
        return SimpleNamespace(terms=terms, state={}, clients=[], accuracy=())

    monkeypatch.setattr(engine, "run", train)
    monkeypatch.setattr(cli.federate, "_show", lambda *arguments: None)
    assert cli.main(["federate", "adult", "--flower", "--out", str(tmp_path / "kept")]) == 0
    opened = RunFolder.open(tmp_path / "kept")
    assert opened.command == "federate"
    assert {name for name, file in opened.files.items() if file.public} == {"terms.json", "facts.json"}
    assert not opened.files["0/book"].public


@pytest.mark.parametrize("name", ["plan.json", "model.pt"])
def test_a_changed_file_is_named(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(pp.InvalidInput, match=f"{name} was changed after this run wrote it"):
        RunFolder.open(folder)
    (folder / name).write_bytes(content)
    RunFolder.open(folder)


@pytest.mark.parametrize("name", ["plan.json", "model.pt"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(pp.InvalidInput, match=f"{name} is missing"):
        RunFolder.open(folder)


@pytest.mark.parametrize("name", ["run.json", "public.json"])
@pytest.mark.parametrize("schema", [0, 2])
def test_an_unknown_schema_number_is_refused_whatever_else_it_says(folder, name, schema):
    (folder / name).write_text(json.dumps({"schema": schema, "more": [1]}), encoding="utf-8")
    with pytest.raises(pp.InvalidInput, match=rf"{name} has schema number {schema}.* knows 1"):
        RunFolder.open(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"schema": "1"}', '{"schema": 1}', '{"schema": 1, "files": {"a": 3}}']
)
def test_a_damaged_list_is_refused(folder, text):
    (folder / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(pp.InvalidInput, match=r"run.json was changed or damaged"):
        RunFolder.open(folder)


def test_a_public_list_that_names_other_files_is_refused(folder):
    whole, public = lists(folder)
    for files in ({}, whole["files"]):
        (folder / "public.json").write_text(json.dumps({**public, "files": files}), encoding="utf-8")
        with pytest.raises(pp.InvalidInput, match=r"public.json was changed"):
            RunFolder.open(folder)


def test_day_and_versions_stay_when_a_file_is_added_later(folder):
    for name, begun in (("run.json", "2001-02-03"), ("public.json", "2001-02-03")):
        listing = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps({**listing, "begun": begun, "versions": {"python": "3.11"}}))
    RunFolder.open(folder).add("more.txt", "text")
    opened = RunFolder.open(folder)
    assert (opened.begun, opened.versions) == ("2001-02-03", {"python": "3.11"})
    public = lists(folder)[1]
    (folder / "public.json").write_text(json.dumps({**public, "begun": "2001-02-04"}))
    with pytest.raises(pp.InvalidInput, match=r"public.json was changed: day or versions"):
        RunFolder.open(folder)


def test_a_list_of_an_earlier_release_is_read(folder):
    for name in ("run.json", "public.json"):
        listing = json.loads((folder / name).read_text(encoding="utf-8"))
        del listing["begun"], listing["versions"]
        (folder / name).write_text(json.dumps(listing))
    assert RunFolder.open(folder).begun == ""


def test_public_files_can_be_passed_on_with_their_list(folder, tmp_path):
    other = tmp_path / "shown"
    other.mkdir()
    for name in ("public.json", *lists(folder)[1]["files"]):
        (other / name).write_bytes((folder / name).read_bytes())
    assert set(RunFolder.open(other).files) == {"model.pt"}
    (other / "model.pt").write_bytes(b"others")
    with pytest.raises(pp.InvalidInput, match=r"model.pt was changed"):
        RunFolder.open(other)


@pytest.mark.parametrize("name", ["", "run.json", "public.json", "../plan.json", "/etc/hosts", "a/../../b"])
def test_no_name_leads_out_of_the_folder_or_to_a_list(folder, name):
    opened = RunFolder.open(folder)
    with pytest.raises(pp.InvalidInput, match="cannot be a file of the run"):
        opened.add(name, "text")
    whole = lists(folder)[0]
    whole["files"] = {name: {"public": False, "sha256": "0"}}
    (folder / "run.json").write_text(json.dumps(whole), encoding="utf-8")
    (folder / "public.json").unlink()
    with pytest.raises(pp.InvalidInput, match="cannot be a file of the run"):
        RunFolder.open(folder)


def test_an_empty_folder_is_no_run(tmp_path):
    with pytest.raises(pp.InvalidInput, match=r"neither run.json nor public.json"):
        RunFolder.open(tmp_path)


def test_a_finished_run_is_not_written_over(folder):
    check_free(folder, "metrics.json")
    with pytest.raises(pp.InvalidInput, match=r"already holds the model.pt of a run.*; think of ε"):
        check_free(folder, "model.pt", hint="; think of ε")
    with pytest.raises(pp.InvalidInput, match="is a file"):
        check_free(folder / "model.pt")


def test_a_file_that_cannot_be_written_is_not_listed(folder):
    def fails(file):
        file.write(b"half")
        raise OSError("no space left")

    opened = RunFolder.open(folder)
    with pytest.raises(OSError, match="no space"):
        opened.add("model.pt", fails, public=True)
    assert (folder / "model.pt").read_bytes() == b"weights"
    assert set(RunFolder.open(folder).files) == {"plan.json", "model.pt"}
