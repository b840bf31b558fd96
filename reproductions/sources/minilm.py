"""SST-2 through MiniLM-L6, which was trained on public texts: a probe on its sentences, LoRA, or whole layers."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from privypurse._storage import replace_file
from privypurse.errors import InvalidInput
from reproductions import sst2
from reproductions.choice import Rivals, Settings
from reproductions.pretrained import fetch
from reproductions.pretrained.probe import probe, scaled
from reproductions.pretrained.sentence_encoder import FineTuned, SentenceEncoder, Size
from reproductions.pretrained.word_pieces import SPECIAL, WordPieces

WEIGHTS = "minilm-l6"
_LENGTH = 64  # tokens that a phrase is cut or padded to: public
_TRAINED_ON = 32  # of them, in training: one phrase in twenty is longer
_CHUNK = 500


def prepare(table: Rivals, folder: Path, device: torch.device) -> None:
    """Tokens, sentences as the encoder comes, and the split, which takes whole sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    if table.quick and not (folder / f"{WEIGHTS}.npz").is_file():
        _make_up_weights(folder)
    encoder, vocabulary = _encoder(folder)
    last = _split_file(folder, table.validation)
    if last.is_file():
        return
    pieces, parts = WordPieces(vocabulary), sst2.parts_or_made_up(table.quick)
    for part, whole in parts.items():
        tokens = pieces.numbers(whole.texts[: table.records], _LENGTH)
        np.save(_file(folder, part, "labels"), whole.labels[: table.records])
        np.save(_file(folder, part, "tokens"), tokens.astype(np.int16))
        np.save(_file(folder, part, "sentences"), _sentences(encoder.to(device), tokens, device))
    trains, chooses = sst2.split(parts["train"].texts[: table.records], table.validation)
    replace_file(last, partial(np.savez, trains=trains, chooses=chooses))


def _file(folder: Path, part: str, what: str) -> Path:
    return folder / f"sst2-{part}-{what}.npy"


def _split_file(folder: Path, held: int) -> Path:
    return folder / f"sst2-split-{held}.npz"


def _encoder(folder: Path) -> tuple[SentenceEncoder, list[str]]:
    weights = dict(fetch.load(WEIGHTS, folder))
    vocabulary = weights.pop("vocabulary").tolist()
    return SentenceEncoder(Size.of(weights)).load(weights).eval(), vocabulary


def _make_up_weights(folder: Path) -> None:
    """A small encoder that nobody trained, with letters for a vocabulary: quick runs show that all runs, no more."""
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    torch.manual_seed(0)
    small = SentenceEncoder(Size(len(vocabulary), _LENGTH, width=64, inside=64, layers=2))
    weights = {name: values.numpy() for name, values in small.half().state_dict().items()}
    np.savez(folder / f"{WEIGHTS}.npz", vocabulary=np.array(vocabulary), **weights)


@torch.no_grad()
def _sentences(encoder: SentenceEncoder, tokens: np.ndarray, device: torch.device) -> np.ndarray:
    """Short ones together, so that little is padding."""
    lengths = (tokens > 0).sum(1)
    order = np.argsort(lengths, kind="stable")
    out = np.empty((len(tokens), encoder.words.embedding_dim), np.float32)
    for first in range(0, len(tokens), _CHUNK):
        rows = order[first : first + _CHUNK]
        some = tokens[rows, : lengths[rows].max()].astype(np.int64)
        out[rows] = encoder(torch.as_tensor(some, device=device)).cpu().numpy()
    return out


def load(data: str, part: str, settings: Settings, folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    """Sentences [n, width] for a probe, else tokens [n, 64]."""
    what = "sentences" if settings.network == "probe" else "tokens"
    x, y = (torch.as_tensor(np.load(_file(folder, part, each)), device=device) for each in (what, "labels"))
    return (scaled(x, settings.scaling) if settings.network == "probe" else x), y


def split(data: str, records: int, held: int, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(_split_file(folder, held)) as rows:
        return rows["trains"], rows["chooses"]


def network(settings: Settings, records: Tensor, classes: int, folder: Path) -> nn.Module:
    """``probe``; ``lora-3``: rank ``width`` in the last three layers; ``full-6``: all weights of the last six."""
    if settings.network == "probe":
        return probe(records.shape[1], classes)
    found = re.fullmatch(r"(lora|full)-(\d+)", settings.network)
    if not found:
        raise InvalidInput(f"network is {settings.network!r}; choose probe, lora-N or full-N, for N trained layers")
    how, layers = found.groups()
    rank = settings.width if how == "lora" else None
    return FineTuned(_encoder(folder)[0], classes, int(layers), rank, _TRAINED_ON, settings.scaling)
