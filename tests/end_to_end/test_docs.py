"""What README and docs say is so: code runs, links and anchors lead somewhere, files that are named exist."""

import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import privypurse
from reproductions import catalogue, headline, picture, results
from reproductions.grid import Grid

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "reproductions" / "README.md"]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}


def programs(text: str) -> list[str]:
    """The Python blocks of a page. One that imports more than the library begins a program; others go on with it."""
    found: list[str] = []
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if found and not re.match(r"(import|from) (?!privypurse\.)", block):
            found[-1] += block
        else:
            found.append(block)
    return found


COMPONENTS = {
    "transformers": "hf",
    "peft": "peft",
    "lightning": "lightning",
    "onnxruntime": "onnx",
    "sklearn": "sklearn",
}


def needed(program: str) -> list[pytest.MarkDecorator]:
    """What a program imports and not every machine has."""
    modules = re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE)
    return [pytest.mark.needs(COMPONENTS[module]) for module in modules if module in COMPONENTS]


PROGRAMS = [
    pytest.param(program, id=f"{page.name}-{number}", marks=needed(program))
    for page, text in TEXTS.items()
    for number, program in enumerate(programs(text))
]
RULES = (
    "amplification",
    "public-divisor",
    "exact-sampling",
    "rounding",
    "filters",
    "sensitive-outputs",
    "conditional-promise",
    "client-sampling",
    "infeasible-budgets",
    "noise-and-coins",
    "fixed-guarantees",
    "isolation",
    "people-not-rows",
    "lasting-purses",
    "balances",
    "measurement",
)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: lower case, hyphens for spaces, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(text: str) -> list[tuple[str, str]]:
    """Paths and anchors of all links that stay in the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL))
    return [(path, anchor) for path, _, anchor in (link.partition("#") for link in found) if ":" not in path]


def named_files(text: str) -> set[str]:
    """Files and folders that are named in backticks, from the root or from one of `PLACES`."""
    return set(re.findall(r"`((?:[a-z_]+/)+|(?:[\w.-]+/)*\w+\.py)`", text))


PLACES = [
    ROOT / place
    for place in (".", "src/privypurse", "tests", "tests/unit", "tests/unit/training/isolation", "examples/federated")
]


@pytest.mark.docs
@pytest.mark.parametrize("program", PROGRAMS)
def test_code_runs(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "page", "exec"), {"__name__": "page"})


SHELL = [page for page, text in TEXTS.items() if "```sh\n" in text and page.name != "serving.md"]
"""All but the page that test_afternoon.py runs, and looks at what it leaves behind."""


PRIVYPURSE = """privypurse() {{
  case "$1" in audit) set -- "$@" --confidence 0.9999999 ;; esac  # at 95 % a sound run may be refuted by chance
  {python} -m privypurse.cli "$@"
}}"""


@pytest.mark.docs
@pytest.mark.parametrize("page", SHELL, ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """The blocks marked as shell, one after another; `privypurse` is the one that is tested."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXTS[page], re.DOTALL)
    script = f"set -eu\n{PRIVYPURSE.format(python=sys.executable)}\n" + "\n".join(blocks)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_page_is_short_and_has_code_and_a_picture() -> None:
    text = TEXTS[ROOT / "README.md"]
    assert len(text.splitlines()) <= 150
    assert "```python" in text
    assert "](docs/results/headline.svg)" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for path, anchor in links(TEXTS[page]):
        target = page if not path else (page.parent / path).resolve()
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            assert anchor in anchors(TEXTS[target]), f"{page.name} links to #{anchor} in {target.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    places = [page.parent, *PLACES]
    missing = sorted(name for name in named_files(TEXTS[page]) if not any((at / name).exists() for at in places))
    assert not missing, f"{page.name} names {missing}"


def resolved(name: str) -> object:
    """What a dotted name stands for, in full or from `privypurse`; an error if it stands for nothing."""
    parts = name.split(".")
    for whole in (parts, ["privypurse", *parts]):
        for cut in range(len(whole), 0, -1):
            try:
                return functools.reduce(getattr, whole[cut:], importlib.import_module(".".join(whole[:cut])))
            except (ImportError, AttributeError):
                continue
    raise LookupError(name)


def test_every_function_that_came_from_a_paper_exists() -> None:
    table = TEXTS[ROOT / "docs" / "papers.md"].split("## From equations to functions")[1].split("##")[0]
    cells = [line.split("|")[3] for line in table.splitlines() if line.startswith("|") and "---" not in line][1:]
    names = [name for cell in cells for name in re.findall(r"`([\w.]+)[^`]*`", cell)]
    assert len(names) > 20
    for name in names:
        resolved(name)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_every_name_of_the_library_exists(page: Path) -> None:
    for name in re.findall(r"`(?:privypurse|pp)\.([A-Za-z_.]+)[^`]*`", TEXTS[page]):
        resolved(name)


COMMANDS = {
    r"privypurse [a-z]+": "src/privypurse/cli",
    r"python -m reproductions": "reproductions",
    r"python -m benchmarks": "benchmarks",
}
"""Commands, and where their options are written."""


def options(text: str, command: str) -> set[str]:
    """The options with which a page calls a command, in a line of its own or between backticks."""
    calls = re.findall(rf"(?:^|`)({command}[^`\n]*)", text, re.MULTILINE)
    return {option for call in calls for option in re.findall(r"(?<= )--(?!help)[a-z][a-z-]+", call.split("  #")[0])}


@pytest.mark.parametrize(("command", "folder"), COMMANDS.items(), ids=COMMANDS.values())
def test_every_option_of_a_command_exists(command: str, folder: str) -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / folder).glob("*.py"))
    found = {page.name: options(text, command) for page, text in TEXTS.items()}
    assert any(found.values())
    for page, names in found.items():
        for name in names:
            assert f'"{name}"' in source, f"{page} calls {command} with {name}"


def test_a_link_to_nowhere_would_be_seen() -> None:
    assert links("see [a](b.md#c), `[no](code)` and [out](https://x.org/y)") == [("b.md", "c")]
    assert anchors("# People, not rows\n```\n# no heading\n```\n## `train`") == {"people-not-rows", "train"}
    assert named_files("`a/b/`, `a/b.py`, `c.py`, `a.b(c)`, `x/y`, `out/NAME/`") == {"a/b/", "a/b.py", "c.py"}


def test_every_page_is_in_the_index() -> None:
    listed = {path for path, _ in links(TEXTS[ROOT / "docs" / "index.md"])}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed


def test_rules_keep_their_anchors() -> None:
    assert set(RULES) <= anchors(TEXTS[ROOT / "docs" / "soundness.md"])


@pytest.mark.parametrize("folder", ["src", "reproductions", "benchmarks", "examples", "tests"])
def test_pages_that_the_code_names_exist(folder: str) -> None:
    for path in set((ROOT / folder).rglob("*.py")) - {Path(__file__)}:
        for page, anchor in re.findall(r"(docs/[\w-]+\.md)(?:#([\w-]+))?", path.read_text(encoding="utf-8")):
            assert (ROOT / page).is_file(), f"{path.name} names {page}"
            assert not anchor or anchor in anchors(TEXTS[ROOT / page]), f"{path.name} names {page}#{anchor}"


@pytest.mark.slow
def test_the_picture_is_what_the_results_say() -> None:
    assert picture.PICTURE.read_text(encoding="utf-8") == picture.drawn()


def tables(text: str) -> dict[str, dict[str, str]]:
    """Every row of a page's tables by its first cell, each cell by the head of its column."""
    rows: dict[str, dict[str, str]] = {}
    heads: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or not heads:
            heads = cells
        elif set(line) - set("|- "):
            rows.setdefault(cells[0], dict(zip(heads, cells, strict=True)))
    return rows


def otherwise(told: dict[str, str], measured: dict[str, str]) -> list[str]:
    """The columns in which a row differs from what was measured."""
    measured = measured | {"paper": measured["paper"].split(" (")[0]}  # the page says elsewhere whose figure it is
    return [head for head, cell in told.items() if cell != measured.get(head, cell)]


MEASURED = tables((ROOT / "reproductions" / "results" / "headline.md").read_text(encoding="utf-8"))
RIVALS = {"uniform", "exclude", "Sample", "Scale", "no privacy", "gain on uniform", "gain on exclude"}


@pytest.mark.parametrize("name", MEASURED)
def test_the_tables_of_the_results_are_what_was_measured(name: str) -> None:
    told = tables(TEXTS[ROOT / "docs" / "results.md"])[name]
    assert set(told) >= RIVALS
    assert not otherwise(told, MEASURED[name])


ACCURACIES = ("accuracy", "training_accuracy")


@pytest.mark.parametrize("path", sorted((catalogue.RESULTS / "papers").glob("*.jsonl")), ids=lambda path: path.stem)
def test_figures_of_the_papers_tables_are_what_was_measured(path: Path) -> None:
    grid = catalogue.load(path.stem)
    assert isinstance(grid, Grid)
    page = TEXTS[ROOT / "docs" / "results.md"]
    for place, lines in grid.found(results.read(path)).items():
        for scores in ([line[each] for line in lines] for each in grid.show if each in ACCURACIES):
            told = f"{np.mean(scores):.2f}" + (f" ± {np.std(scores, ddof=1):.2f}" if len(scores) > 1 else "")
            assert told in page, place
        shown = [each for each in ("epsilon", "released") if each in grid.show]
        for mean, *quantiles in (np.mean([line[each] for line in lines], axis=0) for each in shown):
            assert f"| {mean:.3f} |" in page
            assert f"| {' / '.join(f'{each:.3f}' for each in quantiles)} |" in page


def test_figures_that_changed_places_would_be_seen() -> None:
    page = "| data | paper | a | b |\n| - | - | - | - |\n| X | 1 | 2 | 3 |\n\ntext\n| Y | c |\n| - | - |\n| Z | 4 |"
    assert tables(page) == {"X": {"data": "X", "paper": "1", "a": "2", "b": "3"}, "Z": {"Y": "Z", "c": "4"}}
    measured = {"data": "X", "b": "3", "a": "2", "paper": "1 (somebody)", "oracle": "5"}
    assert not otherwise(tables(page)["X"], measured)
    assert otherwise(tables(page.replace("| 2 | 3 |", "| 3 | 2 |"))["X"], measured) == ["a", "b"]
    assert otherwise(tables(page.replace("| 1 |", "| 7 |"))["X"], measured) == ["paper"]


def test_every_row_of_the_headline_has_five_seeds() -> None:
    for path in catalogue.RESULTS.glob("*.jsonl"):
        table = catalogue.load(path.stem)
        assert table.seeds >= 5, path.name


FINE_TUNED = {
    "cifar10-last-block": "cifar10-probe",
    "cifar10-last-block-70-20-10": "cifar10-probe-70-20-10",
    "sst2-lora": "sst2-probe",
    "sst2-lora-70-20-10": "sst2-probe-70-20-10",
    "sst2-full": "sst2-probe",
    "sst2-full-70-20-10": "sst2-probe-70-20-10",
}
"""Tables of fine-tuned models, and the probe that each is compared with."""


@pytest.mark.parametrize(("name", "probe"), FINE_TUNED.items(), ids=FINE_TUNED)
def test_what_fine_tuning_gains_is_what_was_measured(name: str, probe: str) -> None:
    """Sample's own interval by another road than `headline.interval`, and the probes' means."""
    tuned, frozen = (headline.finished(catalogue.load_rivals(each), catalogue.RESULTS) for each in (name, probe))
    sample, uniform = tuned.accuracy["sample"], tuned.accuracy["uniform"]
    low, high = stats.ttest_rel(sample, uniform).confidence_interval(0.95)
    told = TEXTS[ROOT / "docs" / "results.md"].splitlines()
    (row,) = (line for line in told if line.startswith(f"| {tuned.table.title} |"))
    assert row.split(" | ")[-3] == f"{(sample - uniform).mean():+.2f} [{low:+.2f}, {high:+.2f}]"
    means = [frozen.accuracy[method].mean() for method in ("uniform", "sample")]
    assert row.split(" | ")[-2:] == [f"{means[0]:.2f}", f"{means[1]:.2f} |"]


STEPS, WALK, RATE = "steps", "walk", "learning_rate"
EDGES = {
    "scattering-mnist": {STEPS: "all"},
    "scattering-fashion-mnist": {STEPS: "all"},
    "scattering-svhn": {STEPS: "all"},
    "scattering-cifar10": {WALK: "scale", STEPS: "all"},
    "cifar10-probe": {},
    "cifar10-probe-70-20-10": {STEPS: "none"},
    "adult": {STEPS: "sample"},
    "sst2-probe": {STEPS: "uniform"},
    "sst2-probe-70-20-10": {STEPS: "uniform scale ceiling none", RATE: "none"},
}
"""As docs/results.md says it."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "told"), EDGES.items(), ids=EDGES)
def test_where_a_search_ended_at_its_edge_is_told(name: str, told: dict[str, str]) -> None:
    choice = headline.finished(catalogue.load_rivals(name), catalogue.RESULTS).choice
    edges = {method: choice.at_edge(method) for method in choice.table.methods}
    for what in (STEPS, WALK, RATE):
        found = {method for method, each in edges.items() if what in each}
        assert found == (set(choice.table.methods) if told.get(what) == "all" else set(told.get(what, "").split()))


def test_where_a_search_for_fine_tuning_ended_at_its_edge_is_told() -> None:
    at_edge = set()
    for name in FINE_TUNED:
        table = catalogue.load_rivals(name)
        choice = headline.finished(table, catalogue.RESULTS).choice
        (walks,) = (stage.grid["walk"] for stage in table.stages if "walk" in stage.grid)
        at_edge |= {
            (name, method, walk)
            for method in table.methods
            if (walk := choice.chosen(method).settings.walk) in (min(walks), max(walks))
        }
    assert at_edge == {("cifar10-last-block-70-20-10", "uniform", 0.003)}


def test_the_citation_has_the_version() -> None:
    assert f"version: {privypurse.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_first_pages_figures_are_those_of_the_results() -> None:
    told = {name: row for name, row in tables(TEXTS[ROOT / "README.md"]).items() if name in MEASURED}
    assert len(told) == 6
    for name, row in told.items():
        ours = next(cell for cell in MEASURED[name].values() if cell.startswith("**"))
        measured = (*(MEASURED[name][head] for head in ("uniform", "exclude")), ours, MEASURED[name]["no privacy"])
        assert list(row.values())[1:] == [re.sub(r" ± [\d.]+", "", cell) for cell in measured], name


def test_the_first_pages_demo_is_that_of_the_results() -> None:
    pages = [TEXTS[ROOT / "README.md"], TEXTS[ROOT / "docs" / "results.md"]]
    for name in ("a branch of 3,000 people", "all 32,561 people"):
        first, results_row = (
            next(line for line in page.splitlines() if line.startswith(f"| {name} |")) for page in pages
        )
        figures = re.findall(r"(?<![-+.\d])\d\d\.\d\d(?= \||\*\*)", first)
        assert figures == re.findall(r"(\d\d\.\d\d) ±", results_row)
        assert len(figures) == 5
        assert first.split(" | ")[-1] == results_row.split(" | ")[-1]
