"""A report of many people in a browser: python -m benchmarks.report [--people 60000] [--repeat 5] [--bars]

Trains a small network on made-up records with everything that a run can leave behind (individual spending, people in
training measured, two groups), writes its internal report with an audit of made-up figures, and opens it in Chromium,
each time in a new window that has settled. Printed: seconds to write the page and its size; seconds from opening it
to the moment at which every chart says that it is drawn (`data-ready`), each time and their median.

--bars exits with 1 if the median is above 2 s or the page has 5 MB or more; the machine should be idle. --picture
FILE keeps a picture of the public page of a real run instead: the whole census, as `privypurse train` trains it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from privypurse import _totals
from privypurse.audit.result import AuditResult, Cost, Group, Roc
from privypurse.report.page import report
from privypurse.runs.config import parse_config
from privypurse.runs.training_run import train_by

SECONDS, BYTES = 2.0, 5_000_000
_DRAWN = ".chart:not([data-ready])"
_SETTLED = 3_000  # ms: a new window of Chromium loads hundreds of files of its own, for the bar above the page
_MADE_UP = """
[data]
table = "{folder}/people.csv"
label = "answer"
classes = ["no", "yes"]
person = "id"
[data.features]
age = {{ low = 0, high = 100 }}
pay = {{ low = 0, high = 10 }}
[data.groups]
town = ["north", "south", "east", "west"]
[budgets]
level = "consent"
levels = {{ strict = 1.0, medium = 2.0, relaxed = 4.0 }}
[plan]
steps = 40
extra_steps = 40
batch_size = 1024
accountant = "rdp"
[model]
kind = "mlp"
hidden = [16]
[optimizer]
name = "SGD"
lr = 0.5
[individual]
every = 10
[training]
device = "cpu"
measure_members = true
out = "{folder}/run"
"""
_CENSUS = """
[data]
name = "adult"
[budgets]
delta = 1e-5
simulate = {{ epsilon = [0.5, 1.0, 2.0], shares = [0.5, 0.3, 0.2] }}
[plan]
steps = 200
batch_size = 1024
noise_multiplier = 1.5
accountant = "rdp"
[model]
kind = "mlp"
hidden = [32]
[optimizer]
name = "SGD"
lr = 1.0
[training]
device = "cpu"
validate_every = 20
out = "{folder}/run"
"""


def made_up_run(folder: Path, people: int) -> Path:
    """The folder of a run on so many people."""
    random = np.random.default_rng(0)
    columns = {
        "age": random.integers(0, 100, people).tolist(),
        "pay": random.uniform(0, 10, people).round(2).tolist(),
        "town": random.choice(["north", "south", "east", "west"], people).tolist(),
        "consent": random.choice(["strict", "medium", "relaxed"], people).tolist(),
    }
    wealthy = np.array(columns["pay"]) + np.array(columns["age"]) / 20 + random.normal(size=people) > 7
    rows = zip(*columns.values(), np.where(wealthy, "yes", "no").tolist(), range(people), strict=True)
    lines = [",".join((*columns, "answer", "id")), *(",".join(map(str, row)) for row in rows)]
    (folder / "people.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return train_by(parse_config(_MADE_UP.format(folder=folder))).folder


def made_up_audit() -> AuditResult:
    """Figures as an audit might find them, to draw; nothing was attacked."""
    false = np.linspace(0, 1, 500)
    groups = tuple(
        Group(
            name=name,
            claimed_epsilon=epsilon,
            delta=1e-5,
            flagged=False,
            bounds={"guesses": 0.3 * epsilon, "f-dp": 0.6 * epsilon, "gaussian scores": 0.9 * epsilon},
            auc=0.5 + 0.02 * epsilon,
            roc=Roc(
                false_positive_rate=tuple(false.tolist()),
                true_positive_rate=tuple((false ** (1 / (1 + 0.1 * epsilon))).tolist()),
            ),
        )
        for name, epsilon in (("strict", 1.0), ("medium", 2.0), ("relaxed", 4.0))
    )
    cost = Cost(trainings=1, seconds=1.0)
    fixed = {"attack": "canaries", "data": "made up", "delta": 1e-5, "confidence": 0.95, "verdict_reading": "f-dp"}
    return AuditResult(**fixed, groups=groups, cost=cost)  # type: ignore[arg-type]


def opened(browser: Any, page: Path) -> tuple[float, int]:
    """Seconds until every chart is drawn, and how many there are."""
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    tab = context.new_page()
    tab.wait_for_timeout(_SETTLED)
    begun = time.perf_counter()
    tab.goto(page.as_uri(), wait_until="commit")
    tab.locator(".chart[data-ready]").first.wait_for(state="attached")
    while tab.locator(_DRAWN).count():
        tab.wait_for_timeout(10)
    taken, charts = time.perf_counter() - begun, tab.locator(".chart").count()
    context.close()
    return taken, charts


def picture(browser: Any, page: Path, file: Path) -> None:
    """The top of the page, as it looks in a window."""
    context = browser.new_context(viewport={"width": 900, "height": 1150}, device_scale_factor=1)
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.locator(".chart[data-ready]").first.wait_for(state="attached")
    tab.wait_for_timeout(500)
    tab.screenshot(path=str(file))
    context.close()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--people", type=int, default=60_000)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--picture", type=Path)
    options.add_argument("--bars", action="store_true")
    chosen = options.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder, page = Path(name), Path(name) / "report.html"
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        _totals.said()  # one run alone
        if chosen.picture is not None:
            page.write_text(report(train_by(parse_config(_CENSUS.format(folder=folder))).folder), encoding="utf-8")
            picture(browser, page, chosen.picture)
            return 0
        run = made_up_run(folder, chosen.people)
        begun = time.perf_counter()
        page.write_text(report(run, edition="internal", audit=made_up_audit()), encoding="utf-8")
        written, size = time.perf_counter() - begun, page.stat().st_size
        found = [opened(browser, page) for _ in range(chosen.repeat)]
        browser.close()
    taken = statistics.median(seconds for seconds, _ in found)
    print(f"{chosen.people:,} people: written in {written:.2f} s, {size / 1e6:.2f} MB, {found[0][1]} charts")
    print(f"all drawn after {', '.join(f'{seconds:.2f}' for seconds, _ in found)} s, median {taken:.2f} s")
    return int(chosen.bars and (taken > SECONDS or size >= BYTES))


if __name__ == "__main__":
    sys.exit(main())
