"""A model as ONNX and as .pt2: equal answers where neither Privy Purse nor PyTorch can be imported."""

import csv
import json
import os
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch

import privypurse as pp
from command_line import done, run
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Categories, Dates, Flag, Range
from privypurse.datasets.targets import Classes, Flags, Number
from privypurse.runs.config import Model
from privypurse.runs.export import export
from privypurse.runs.folder import RunFolder
from privypurse.runs.models import model_of
from privypurse.runs.predictor import add_network
from privypurse.runs.training_run import add_model
from privypurse.runs.verification.file_forms import is_onnx, is_pt2

pytestmark = pytest.mark.needs("onnx")
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "serving" / "answer.py"

COLUMNS = {
    "age": Range(0, 100),
    "income": Range(0, 1e6, log=True),
    "town": Categories(("Oslo", "Rome", "3")),
    "since": Dates(date(2000, 1, 1), date(2030, 1, 1)),
    "born": Dates(date(1900, 1, 1), date(2030, 1, 1), form="%d.%m.%Y"),
    "member": Flag(),
    "plain": Categories(("a",), other=False, indicator=False),
}
ODD = {
    "age": ["41.5", " 7 ", "", "NA", "1_000", "nan", "-inf", "1e2", "٣", "-5", ".5", "Infinity"],
    "income": ["0", "1234.5", "1e9", "x", "", "999999", "?", "-3", "0.001", "1", "2", "3"],
    "town": ["Oslo", "Rome ", "3.0", "Paris", "", "NA", "oslo", "3", "nan", "03", "Ro,me", "R\nome"],
    "since": ["2010-05-06", "2010-05-06T10:00", "1990-01-01", "2020-02-30", "", "6.5.2010", "2029-12-31"] + ["x"] * 5,
    "born": ["06.05.1970", "6.5.1970", "1970-05-06", "31.02.1970", "", "01.01.1900", "31.12.2029"] + ["x"] * 5,
    "member": ["yes", "NO", "1", "0", "T", "false", "", "maybe", "NA", "Y", "1.0", "true"],
    "plain": ["a", "b", "", "A"] * 3,
}
TARGETS = {
    "classes": Classes("answer", ("no", "yes", "perhaps")),
    "number": Number("amount", Range(10, 90_000, log=True)),
    "flags": Flags(("a", "b")),
}
ALONE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("privypurse", "torch"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
for name in ("privypurse", "torch"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    sys.exit(f"{name} can be imported")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not {"privypurse", "torch"} & set(sys.modules)
"""


def written(path, target, *, public=True, kind="mlp"):
    encoder = Encoder(COLUMNS, target, missing=("NA", "?"))
    network = Model(kind, (6,))
    torch.manual_seed(0)
    model = model_of(network, (encoder.width,), target.outputs)
    if kind == "mlp":
        torch.nn.init.constant_(model[-1].bias, 0.6)  # not beyond an end of the number's scale
    folder = RunFolder.begin(path, "train")
    add_network(folder, network, (encoder.width,), target.outputs, encoder, public=public)
    add_model(folder, model, public=public)
    return path


def write_table(name):
    with open(name, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(ODD), *zip(*ODD.values(), strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_equal_answers_without_privypurse_and_torch(tmp_path, monkeypatch, capsys, kind):
    """The example of the docs as it stands, in a process that can import neither; cells odd and missing."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run", TARGETS[kind])
    write_table("new.csv")
    assert "public" in done(capsys, "export run")
    (tmp_path / "elsewhere").mkdir()
    for name in ("encoder.json", "export.onnx"):  # two files are enough
        (tmp_path / "elsewhere" / name).write_bytes((tmp_path / "run" / name).read_bytes())
    alone = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(EXAMPLE), "elsewhere", "new.csv"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert alone.returncode == 0, alone.stderr
    found = np.array([line.split(",") for line in alone.stdout.split()], dtype=float)
    loaded = pp.load("run")
    expected = loaded.answers_about(ODD)
    assert found.shape == expected.shape == (12, TARGETS[kind].outputs)
    scale = 90_000 if kind == "number" else 1
    assert np.abs(found - expected).max() <= 1e-5 * scale
    # Had the encoder done nothing, all rows would be alike.
    assert np.ptp(found, axis=0).min() > 1e-3 * scale
    program = torch.export.load("run/export.pt2").module()
    for rows in (1, 12):
        inputs = torch.as_tensor(loaded.encoder.encode(ODD)[:rows])
        assert np.abs(program(inputs).detach().numpy() - expected[:rows]).max() <= 1e-5 * scale
    require_clean(tmp_path / "run")


def test_what_is_exported_has_its_form(tmp_path, capsys, monkeypatch):
    """By which verify tells it from another file; a longer, a shorter and one of the other format have not."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run", TARGETS["classes"])
    assert "public" in done(capsys, "export run")
    onnx, pt2 = Path("run/export.onnx"), Path("run/export.pt2")
    assert (is_onnx(onnx), is_pt2(pt2)) == (True, True)
    assert not is_onnx(pt2)
    assert not is_pt2(onnx)
    assert not is_pt2(Path("run/model.pt"))
    for content in (b"", onnx.read_bytes()[:-1], onnx.read_bytes() + b"age,person", b"{" + onnx.read_bytes()):
        Path("other").write_bytes(content)
        assert not is_onnx(Path("other"))
    for content in (b"", pt2.read_bytes()[:-100], b"age,person" + pt2.read_bytes()):
        Path("other").write_bytes(content)
        assert not is_pt2(Path("other"))


def test_a_column_that_is_missing_is_named_without_privypurse_too(tmp_path):
    """With the mend, and no traceback; no cell of the table is shown."""
    (tmp_path / "encoder.json").write_text(Encoder(COLUMNS, TARGETS["classes"]).to_json(), "utf-8")
    gone, *there = ODD
    with open(tmp_path / "new.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([there, ["zebra-7731"] * len(there)])
    said = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path), str(tmp_path / "new.csv")], capture_output=True, text=True
    )
    assert said.returncode == 1
    assert said.stderr.startswith(f"{tmp_path / 'new.csv'} has no column {gone!r}; its first line has to name it")
    assert "Traceback" not in said.stderr
    assert "zebra" not in said.stderr + said.stdout


@pytest.mark.slow
@pytest.mark.parametrize("cells", [-1, 1], ids=["too few", "too many"])
def test_a_row_of_another_length_is_named_by_its_line_without_privypurse_too(tmp_path, cells):
    """With what is expected, and no traceback; no cell of the table is shown."""
    (tmp_path / "encoder.json").write_text(Encoder(COLUMNS, TARGETS["classes"]).to_json(), "utf-8")
    with open(tmp_path / "new.csv", "w", newline="", encoding="utf-8") as file:
        rows = [["zebra-7731"] * len(ODD), ["zebra-7731"] * (len(ODD) + cells)]
        csv.writer(file).writerows([list(ODD), *rows])
    said = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path), str(tmp_path / "new.csv")], capture_output=True, text=True
    )
    assert said.returncode == 1
    expected = f"line 3 of {tmp_path / 'new.csv'} does not have one cell for each of the {len(ODD)} columns"
    assert said.stderr.startswith(expected)
    assert "Traceback" not in said.stderr
    assert "zebra" not in said.stderr + said.stdout


def require_clean(folder):
    """Listed, public, intact, and without a word of the machine that wrote them."""
    files = RunFolder.open(folder).files
    assert files["export.onnx"].public
    assert files["export.pt2"].public
    parts = [(folder / "export.onnx").read_bytes()]
    with zipfile.ZipFile(folder / "export.pt2") as archive:
        parts += [archive.read(name) for name in archive.namelist()]
    for word in (str(folder.parent), str(ROOT), sys.prefix, "site-packages", "test_export", "pkg.torch"):
        assert not any(word.encode() in part for part in parts)


def test_the_process_that_can_import_neither_would_notice(tmp_path):
    (tmp_path / "script.py").write_text("import torch", encoding="utf-8")
    code = [sys.executable, "-I", "-c", ALONE, str(tmp_path / "script.py")]
    assert "ModuleNotFoundError" in subprocess.run(code, capture_output=True, text=True).stderr


def test_the_page_shows_the_example_as_it_is():
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert f"```python\n{EXAMPLE.read_text(encoding='utf-8')}```" in page


def test_a_folder_that_was_changed_is_not_exported(tmp_path):
    """Its export would be listed beside it as if the run had made it."""
    written(tmp_path / "run", TARGETS["classes"])
    with (tmp_path / "run" / "model.pt").open("ab") as file:
        file.write(b"0")
    with pytest.raises(pp.InvalidInput, match=r"model\.pt was changed after this run wrote it"):
        export(tmp_path / "run")
    assert not (tmp_path / "run" / "export.onnx").exists()


@pytest.mark.slow
def test_of_a_seeded_run_the_export_is_internal_as_its_model_is(tmp_path, capsys):
    written(tmp_path / "run", TARGETS["classes"], public=False)
    assert "internal, as the model is" in done(capsys, f"export {tmp_path / 'run'}")
    files = RunFolder.open(tmp_path / "run").files
    assert not any(file.public for file in files.values())
    assert json.loads((tmp_path / "run" / "public.json").read_text(encoding="utf-8"))["files"] == {}


def test_a_network_that_cannot_be_followed_is_told(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.LazyLinear(3)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x) if float(x.sum()) > 0.5 else -self.layer(x)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run", TARGETS["classes"], kind="nets:Net")
    with pytest.raises(pp.InvalidInput, match="trust_code=True"):
        export(tmp_path / "run")
    with pytest.raises(pp.InvalidInput, match=r"torch.export cannot follow this network.*pp.load"):
        export(tmp_path / "run", trust_code=True)
    assert "export.onnx" not in RunFolder.open(tmp_path / "run").files


def test_what_is_not_installed_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, _, error = run(capsys, f"export {tmp_path}")
    assert code == 2
    assert "privypurse export needs onnxscript: pip install '.[onnx]' in a clone" in error
