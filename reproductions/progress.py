"""How far a table of rivals has come that is not finished, and what is left of it: no claim rests on this."""

from collections.abc import Iterable, Sequence

import numpy as np

from reproductions.choice import Choice, Rivals
from reproductions.headline import told
from reproductions.results import Job, Line


def remaining(table: Rivals, lines: Iterable[Line]) -> list[Job]:
    """Every training that is left, later stages included.

    They are counted as if none of the missing scores were the best; another choice may need a few more or fewer.
    """
    known, found = list(lines), list[Job]()
    while jobs := table.left(known):
        found += jobs
        known += [{**job.plain(), "accuracy": {str(each): 0.0 for each in job.settings.decays}} for job in jobs]
    return found


def progress(table: Rivals, lines: Sequence[Line]) -> str:
    """As plain text: scores so far, differences to uniform by the same seeds, and what is left."""
    said = [f"{table.name} is not finished"]
    if Choice.of(table, lines).missing():
        said += _scores(table, lines)
    else:
        said += _accuracies(table, lines)
    left = remaining(table, lines)
    choosing = sum(job.place["purpose"] == "choice" for job in left)
    said.append(f"trainings left: {len(left)}, {choosing} of them to choose by")
    if lines:
        seconds = float(np.mean([line["wall"] for line in lines]))
        said[-1] += (
            f"; at {seconds:.0f} s, the mean of the {len(lines)} that are done, {len(left) * seconds / 60:.0f} "
            "minutes, over how many run side by side as these did"
        )
    return "\n".join(said) + "\n"


def _scores(table: Rivals, lines: Sequence[Line]) -> list[str]:
    said = []
    for method in table.methods:
        scored = [line for line in lines if line["purpose"] == "choice" and line["method"] == method]
        if scored:
            best = max(scored, key=lambda line: max(line["accuracy"].values()))
            where = ", ".join(f"{name} {best['settings'][name]}" for name in ("walk", "scaling", "steps"))
            score = max(best["accuracy"].values())
            said.append(f"{method}: validation {score:.2f} at best of {len(scored)} settings so far ({where})")
    return said


def _accuracies(table: Rivals, lines: Sequence[Line]) -> list[str]:
    choice, by_method = Choice.of(table, lines), dict[str, dict[int, float]]()
    for method in table.methods:
        chosen = choice.chosen(method)
        by_method[method] = {
            line["seed"]: line["accuracy"][str(chosen.decay)]
            for line in lines
            if (line["purpose"], line["method"]) == ("final", method) and line["settings"] == chosen.settings.plain()
        }
    said, uniform = [], by_method.get("uniform", {})
    for method, found in by_method.items():
        both = sorted(found.keys() & uniform.keys())
        text = f"{method}: {len(found)} of {table.seeds} seeds"
        if found:
            text += f", test accuracy {np.mean(list(found.values())):.2f}"
        if method != "uniform" and len(both) > 1:
            apart = told(np.array([found[seed] - uniform[seed] for seed in both]))
            text += f", less uniform's {apart} over {len(both)} seeds"
        said.append(text)
    return said
