"""How good a model is on others, in words: each figure beside what one answer for all would reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privypurse.report.numbers import percent

_FEW = 4
"""Of so many classes all confusions are told; of more, how often each is seen."""


def figure_rows(test: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and figures of a test.json, with whose records they are."""
    if not test:
        return []
    return [*_figures(test), *_by_group(test), ("Measured on", f"{test['records']:,} records. {test['about']}")]


def _figures(test: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if test.get("accuracy") is not None:
        yield "Accuracy", _accuracy(test)
    for name, each in test.get("labels", {}).items():
        if each:
            yield f"Accuracy of '{name}'", f"{_accuracy(each)}, on {each['records']:,} records"
    yield from _auc(test.get("auc"))
    if "confusion" in test:
        yield "Said, by class", _confusions(test["classes"], test["confusion"])
    for key, said in (("mean_absolute_error", "Mean absolute error"), ("r_squared", "R²")):
        if test.get(key) is not None:
            yield said, f"{test[key]:.4g}"
    if test.get("loss") is not None:
        yield "Loss", f"{test['loss']:.4g}" + _without(test, "one answer for all")
    if test.get("calibration", {}).get("error") is not None:
        said = "how far what it predicts lies from what is so, on average over bins"
        yield "Calibration error", f"{test['calibration']['error']:.4g}: {said}"


def _accuracy(figures: Mapping[str, Any]) -> str:
    """Beside the share of the commonest class, which takes no model."""
    always = figures.get("accuracy_without_a_model")
    return percent(figures["accuracy"]) + (
        "" if always is None else f" (always the commonest class: {percent(always)})"
    )


def _without(test: Mapping[str, Any], answer: str) -> str:
    plain = test.get("loss_without_a_model")
    return "" if plain is None else f" ({answer}: {plain:.4g})"


def _auc(found: float | Mapping[str, float | None] | None) -> Iterator[tuple[str, str]]:
    if isinstance(found, Mapping):
        known = [each for each in found.values() if each is not None]
        if known:
            yield "AUC", f"{sum(known) / len(known):.3f}, the mean over each class against the rest"
    elif found is not None:
        yield "AUC", f"{found:.3f}"


def _confusions(classes: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Each class with what the model said of its records."""
    told = []
    for place, (name, row) in enumerate(zip(classes, counts, strict=True)):
        if len(classes) <= _FEW:
            said = ", ".join(f"{count:,} '{each}'" for each, count in zip(classes, row, strict=True))
            told.append(f"of {sum(row):,} '{name}': {said}")
        elif sum(row):
            told.append(f"'{name}' {percent(row[place] / sum(row))} of {sum(row):,}")
    return "; ".join(told) + ("" if len(classes) <= _FEW else " seen as what they are")


def _by_group(test: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The main figure for each group, and how many there are of it: figures of few mean little."""
    for column, groups in test.get("groups", {}).items():
        key, name = next(
            (each for each in _MAIN if all(one.get(each[0]) is not None for one in groups.values())), _MAIN[-1]
        )
        told = [f"'{group}' {_main(key, one)} on {one['records']:,} records" for group, one in groups.items()]
        yield f"{name} by '{column}'", "; ".join(told)


_MAIN = (("accuracy", "Accuracy"), ("mean_absolute_error", "Mean absolute error"), ("loss", "Loss"))


def _main(key: str, figures: Mapping[str, Any]) -> str:
    return _accuracy(figures) if key == "accuracy" else f"{figures[key]:.4g}"
