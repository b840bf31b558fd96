"""The benchmark of audits: which canaries make a repeat, and what its bars say."""

import dataclasses
import json

import numpy as np
import pytest
from benchmarks import audit as benchmark

from privypurse.audit.canaries import Canaries
from privypurse.audit.result import Group


def test_every_canary_is_in_one_repeat_and_each_has_as_many_of_every_level():
    canaries = Canaries(np.repeat([0, 2], 6), np.zeros(12, dtype=bool))
    parts = list(benchmark.sets(canaries, 3))
    assert np.sum(parts, axis=0).tolist() == [1] * 12
    assert [np.bincount(canaries.level[part]).tolist() for part in parts] == [[3, 0, 3]] * 2


def groups(bound, flagged):
    return (Group(name="ε = 2", claimed_epsilon=2.0, delta=1e-5, bounds={"f-dp": bound}, flagged=flagged),)


class Stub:
    """As much of an audit as bars ask of."""

    levels, coordinates = np.array([0]), "appended"

    class subject:
        class plan:
            noise_multiplier, clip_norm, all_steps = 2.0, 1.0, 7

            class levels:
                clip_norm, epsilon = np.array([1.0]), np.array([2.0])


@pytest.mark.parametrize(
    ("sound", "broken", "met"),
    [
        ([groups(1.0, False)] * 100, [groups(3.0, True)] * 95 + [groups(1.0, False)] * 5, [True, True, True]),
        ([groups(0.9, False)] * 100, [groups(3.0, True)] * 94 + [groups(1.0, False)] * 6, [False, True, False]),
        ([groups(2.1, True)] * 10 + [groups(1.0, False)] * 90, [groups(3.0, True)] * 100, [True, False, True]),
    ],
)
def test_the_bars(sound, broken, met):
    assert [each for _, each in benchmark.bars(Stub, sound, broken)] == met


def test_a_line_is_kept_for_every_group_of_every_repeat(tmp_path):
    path = tmp_path / "audit.jsonl"
    for bound in (1.0, 2.5):
        found = [groups(bound, bound > 2)] * 2
        benchmark.keep(benchmark.lines(Stub, found, "mnist", "sample", "sound"), path)
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["bounds"]["f-dp"], line["flagged"]) for line in kept] == [(1.0, False)] * 2 + [(2.5, True)] * 2
    assert [line["repeat"] for line in kept] == [0, 1, 0, 1]


def test_a_full_batch_is_under_a_filter_of_gaussian_dp():
    course = dataclasses.replace(benchmark.COURSES["adult"], people=100)
    assert course.plan("full-batch-filter").filter == "gdp"
