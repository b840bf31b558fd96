"""Individualised PATE on MNIST: `python -m reproductions.pate run`, then `python -m reproductions.pate show`.

Settings are chosen on validation records first; then every method is run with seeds 0 to 4. Each run is a line of
results/studies/pate-mnist.jsonl: what was broken off goes on where it was. Runs are seeded, so that they can be
repeated: the labels are for measuring, not for publishing.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from privypurse.errors import InvalidInput, PrivyPurseError
from reproductions import catalogue, results
from reproductions.headline import told
from reproductions.pate.experiment import METHODS, SEEDS, SETUPS, Experiment
from reproductions.results import Line

FILE = catalogue.RESULTS / "studies" / "pate-mnist.jsonl"
_COLUMNS = (
    *("teachers", "asked", "answered", "labels right", "answered / plain"),
    *("supervised", "supervised − plain", "spread", "spread − plain"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions.pate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("run", "show"), help="run what is left, or print the tables")
    parser.add_argument("--file", type=Path, default=FILE, help="of results")
    asked = parser.parse_args(arguments)
    try:
        if asked.action == "run":
            _run(asked.file)
        print("\n".join(tables(results.read(asked.file))))
    except PrivyPurseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(path: Path) -> None:
    experiment = Experiment()
    while left := experiment.left(lines := results.read(path)):
        for job in left:
            begun = time.monotonic()
            line = job.plain() | experiment.run(job, lines) | {"versions": results.versions("cpu")}
            line["seconds"] = round(time.monotonic() - begun, 1)
            results.append(path, line)
            print(f"{line['seconds']:6.1f} s  {job.name}, seed {job.seed}: {line['accuracy']}", flush=True)


def tables(lines: list[Line]) -> list[str]:
    """Markdown: means ± deviations over seeds, differences by the same seeds with 95 % intervals."""
    settings = Experiment().chosen(lines)
    out = [f"Chosen on validation records: {settings.teacher}, {settings.student}"]
    final = [line for line in lines if line["purpose"] == "final" and line["settings"] == settings.plain()]
    for row in SETUPS:
        out += ["", f"| {row} | " + " | ".join(_COLUMNS) + " |", "| --- " * (len(_COLUMNS) + 1) + "|"]
        found = {method: _by_seed(final, row, method) for method in METHODS}
        out += [f"| {method} | {_cells(each, found['plain'])} |" for method, each in found.items()]
    return out


def _by_seed(final: list[Line], row: str, method: str) -> dict[str, np.ndarray]:
    seeds = {line["seed"]: line for line in final if (line["row"], line["method"]) == (row, method)}
    if sorted(seeds) != list(SEEDS):
        raise InvalidInput(f"{row} / {method} has {len(seeds)} of {len(SEEDS)} seeds; run it")
    names = ("teachers", "asked", "answered", "labels", "supervised", "accuracy")
    return {name: np.array([seeds[seed][name] for seed in SEEDS], dtype=np.float64) for name in names}


def _cells(each: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> str:
    def mean(name: str, digits: int) -> str:
        return f"{each[name].mean():.{digits}f} ± {each[name].std(ddof=1):.{digits}f}"

    ratio = each["answered"].sum() / plain["answered"].sum()
    cells = [
        f"{each['teachers'].mean():.0f}",
        mean("asked", 0),
        mean("answered", 1),
        mean("labels", 1),
        f"{ratio:.2f}",
    ]
    for name in ("supervised", "accuracy"):
        cells += [mean(name, 2), "–" if each is plain else told(each[name] - plain[name])]
    return " | ".join(cells)


if __name__ == "__main__":
    torch.set_num_threads(1)  # products are small: more threads wait for each other
    sys.exit(main())
