"""Choosing looks at whole sentences, and trains on no part of them."""

import numpy as np
import pytest

from privypurse.errors import InvalidInput, PrivyPurseError
from reproductions import sst2

SENTENCES = [f"{a} film {b} and {c} ." for a in "pqrst" for b in "uvwx" for c in "yz"]
TEXTS = [part for text in SENTENCES for part in (text, *text.split(" and "), text.split(" film ")[1])]


def told(texts: list[str], trains: np.ndarray, chooses: np.ndarray) -> int:
    """How many records to train on are found within records to choose by: word by word, with a space at the ends."""
    held = [f" {texts[row]} " for row in chooses]
    return sum(any(f" {texts[row]} " in text for text in held) for row in trains)


def test_no_part_of_a_held_sentence_is_trained_on() -> None:
    order = np.random.default_rng(0).permutation(len(TEXTS))
    texts = [TEXTS[i] for i in order]
    trains, chooses = sst2.split(texts, 8)
    assert len(chooses) == 8
    assert {texts[row] for row in chooses} <= set(SENTENCES)  # never a part of another
    assert told(texts, trains, chooses) == 0
    assert np.array_equal(sst2.split(texts, 8)[1], chooses)
    # What is left out tells something about a held sentence: everything else is trained on.
    rest = np.setdiff1d(np.arange(len(texts)), np.concatenate([trains, chooses]))
    assert told(texts, rest, chooses) == len(rest) > 0
    # A random part of the phrases would be known from the rest.
    some = np.random.default_rng(1).permutation(len(texts))
    assert told(texts, some[8:], some[:8]) > 0
    with pytest.raises(InvalidInput, match="validation is 40; there are 40 phrases"):
        sst2.split(texts, 40)


def test_words_that_only_look_alike_are_no_part() -> None:
    trains, chooses = sst2.split(["a good film", "go", "od film", "the plot", "good"], 2)
    assert sorted([*trains.tolist(), *chooses.tolist()]) in ([0, 1, 2, 3], [0, 1, 2, 3, 4])
    assert 4 not in chooses  # a part of the first


@pytest.mark.needs("data/sst2")
def test_the_files_are_the_known_ones() -> None:
    parts = sst2.parts()
    assert {part: len(phrases.texts) for part, phrases in parts.items()} == {"train": 67_349, "test": 872}
    assert parts["test"].texts[0] == "one long string of cliches ."
    assert set(parts["train"].labels.tolist()) == {0, 1}


def test_missing_files_are_named_and_made_up_for_quick_runs_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path))
    with pytest.raises(PrivyPurseError, match=r"train\.tsv is not there"):
        sst2.parts_or_made_up(quick=False)
    made = sst2.parts_or_made_up(quick=True)
    assert len(made["train"].texts) == len(made["train"].labels) == 300
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2" / "train.tsv").write_text("label\tsentence\n1\tgood\n")
    with pytest.raises(PrivyPurseError, match="its checksum differs"):
        sst2.parts()
