"""A run's model, put together again from its folder, with the encoder that makes its inputs of a table.

Three public files are enough: ``model.json`` (which network), ``model.pt`` (its parameters) and, of a table,
``encoder.json`` (which columns, by which constants, and what the outputs mean).
"""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from privypurse.arrays import AnyArray
from privypurse.datasets.encoder import Encoder
from privypurse.datasets.encoding import Range
from privypurse.datasets.read_otherwise import lost_words
from privypurse.datasets.targets import Classes, Flags, Number, Target
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.runs.config import Model
from privypurse.runs.folder import RunFolder
from privypurse.runs.models import model_of

SCHEMA = 1
PARAMETERS, NETWORK, ENCODER = "model.pt", "model.json", "encoder.json"
_BATCH = 8192


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``model.json``: what a model is built from before its parameters are filled in."""

    schema: int
    network: Model
    shape: tuple[int, ...]
    outputs: int


class Answers(nn.Module):
    """The model, and after it what turns its outputs into answers.

    Probabilities float32[n, classes] or [n, flags]; of a number float32[n, 1], back from the scale it was learned on.
    """

    def __init__(self, model: nn.Module, target: Target | None) -> None:
        super().__init__()
        self.model = model
        self.kind = Classes.kind if target is None else target.kind
        self.range = target.range if isinstance(target, Number) else None

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.model(features)
        if self.range is not None:
            return _unscaled(outputs, self.range)
        return torch.sigmoid(outputs) if self.kind == Flags.kind else torch.softmax(outputs, dim=1)


def _unscaled(outputs: Tensor, within: Range) -> Tensor:
    """`Range.unscaled` in torch, so that it can be exported."""
    span = within.high - within.low
    if within.log:
        return within.low + torch.expm1(outputs.clamp(0.0, 1.0) * math.log1p(span))
    return within.low + (outputs.clamp(-1.0, 1.0) + 1) / 2 * span


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model that takes tables: what `load` gives."""

    model: nn.Module
    encoder: Encoder | None
    """None where the model was trained on images: then inputs are arrays float32[n, …] as it was trained on."""
    shape: tuple[int, ...]
    """The shape of one record's input."""
    outputs: int

    @property
    def target(self) -> Target:
        """What the answers mean."""
        if self.encoder is not None and self.encoder.target is not None:
            return self.encoder.target
        return Classes("class", tuple(map(str, range(self.outputs))))

    @property
    def answers(self) -> Answers:
        return Answers(self.model, self.target).eval()

    @property
    def names(self) -> list[str]:
        """What each column of `predict_proba` is about; of a number, its own name."""
        return list(self.target.classes) if isinstance(self.target, Classes) else list(self.target.columns)

    def predict(self, frame: Any) -> AnyArray:
        """For each row the likeliest class (text), the number (float32), or for each label whether (bool[n, labels]).

        ``frame`` is a dictionary of columns, a frame of pandas or polars, a table of pyarrow, or anything that gives
        itself to Arrow. Columns that the model does not take are passed over; what is missing in a cell, or cannot be
        read there, is encoded as missing, as in training.
        """
        return self.said(self.answers_about(frame))

    def predict_proba(self, frame: Any) -> npt.NDArray[np.float32]:
        """float32[n, classes], rows of which add up to 1; of flags float32[n, labels]. A number has none."""
        if isinstance(self.target, Number):
            raise InvalidInput("this model predicts a number, which has no probabilities; call predict")
        return self.answers_about(frame)

    def said(self, answers: npt.NDArray[np.float32]) -> AnyArray:
        """What answers of the model come to, in the words of the target."""
        if isinstance(self.target, Number):
            return answers[:, 0]
        if isinstance(self.target, Flags):
            return np.asarray(answers > 0.5)
        return np.asarray(np.asarray(self.names)[answers.argmax(1)])

    def answers_about(self, frame: Any) -> npt.NDArray[np.float32]:
        """What `Answers` gives for each row, float32[n, outputs]."""
        return self.answers_to(self.inputs(frame))

    def answers_to(self, encoded: AnyArray) -> npt.NDArray[np.float32]:
        """The same of rows as the model takes them."""
        inputs = torch.as_tensor(encoded)
        answers = self.answers
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        with torch.no_grad():
            parts = [answers(part.to(device)).cpu() for part in torch.split(inputs, _BATCH)]
        return np.asarray(torch.cat(parts).numpy())

    def inputs(self, frame: Any) -> AnyArray:
        """Rows as the model takes them."""
        if self.encoder is not None:
            _say_what_is_lost(frame, self.encoder)
            return self.encoder.encode(_columns(frame))
        inputs = np.asarray(frame, dtype=np.float32)
        if inputs.shape[1:] != self.shape:
            wanted = ", ".join(map(str, self.shape))
            raise InvalidInput(f"frame has shape {inputs.shape}; this model takes float32[n, {wanted}]")
        return inputs


def _say_what_is_lost(frame: Any, encoder: Encoder) -> None:
    for name, words in lost_words(frame, encoder).items():
        warnings.warn(
            f"the column {name!r} of frame cannot say {', '.join(map(repr, words[:3]))}, which the model knows: "
            "whoever read it made something else of such cells. Read it as text, as training did: "
            "pandas.read_csv(…, dtype=str, keep_default_na=False)",
            PrivyPurseWarning,
            stacklevel=4,
        )


def _columns(frame: Any) -> Any:
    """Something that gives its columns by name."""
    if isinstance(frame, Mapping) or hasattr(frame, "__getitem__"):
        return frame
    if hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__arrow_c_array__"):
        return pa.table(frame)
    raise InvalidInput(
        f"frame is a {type(frame).__name__}; give a dictionary of columns, a frame of pandas or polars, or a table "
        "of pyarrow"
    )


def add_network(
    folder: RunFolder,
    network: Model,
    shape: tuple[int, ...],
    outputs: int,
    encoder: Encoder | None,
    *,
    public: bool,
) -> None:
    """Write into a run's folder what `load` needs beside the parameters."""
    about = msgspec.json.encode(Network(SCHEMA, network, shape, outputs))
    folder.add(NETWORK, msgspec.json.format(about, indent=1).decode() + "\n", public=public)
    if encoder is not None:
        folder.add(ENCODER, encoder.to_json(), public=public)


def load(run: str | Path, *, trust_code: bool = False) -> Predictor:
    """The model of a run's folder, each file of which is as it was written, or the public files of one.

    Digests find damage and oversight: whoever alters a file on purpose can alter the lists too, so take folders from
    those whom you trust with your predictions. ``trust_code``: a network of one's own ("module:callable") is imported
    and called with the options in the folder, which EXECUTES ITS CODE; without it such a folder is refused.
    """
    return predictor_of(RunFolder.open(run), trust_code=trust_code)


def predictor_of(folder: RunFolder, *, trust_code: bool = False) -> Predictor:
    """The same of a folder that was opened."""
    for name in (PARAMETERS, NETWORK):
        if name not in folder.files:
            raise InvalidInput(
                f"{folder.path} holds no {name}: `privypurse train` writes it when a run ends; name the folder of one"
            )
    about = _network(folder.path / NETWORK)
    if ":" in about.network.kind and not trust_code:
        raise InvalidInput(
            f"the network of {folder.path} is {about.network.kind!r}, which would be imported and called; if you "
            "trust that code, and whoever wrote this folder, say so: --trust-code, in Python trust_code=True"
        )
    encoder = None
    if ENCODER in folder.files:
        encoder = Encoder.from_json((folder.path / ENCODER).read_bytes())
        if about.shape != (encoder.width,) or (encoder.target and encoder.target.outputs != about.outputs):
            raise InvalidInput(f"{ENCODER} and {NETWORK} of {folder.path} are not of one run; put the originals back")
    model = model_of(about.network, about.shape, about.outputs).eval()
    _fill(model, folder.path / PARAMETERS)
    return Predictor(model, encoder, about.shape, about.outputs)


def _network(file: Path) -> Network:
    try:
        schema = msgspec.json.decode(file.read_bytes(), type=dict[str, Any]).get("schema")
        if schema != SCHEMA:
            raise InvalidInput(f"{file} has schema number {schema}, this release knows {SCHEMA}")
        return msgspec.json.decode(file.read_bytes(), type=Network)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{file} was changed or damaged: {error}") from None


def _fill(model: nn.Module, file: Path) -> None:
    """Tensors alone are read: a file that holds code is refused."""
    try:
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many kinds
        first = str(error).strip().partition("\n")[0]
        if isinstance(error, pickle.UnpicklingError):  # torch's words advise to execute it all the same
            first = "it holds more than tensors, or none; parameters are never read as code"
        raise InvalidInput(f"{file} does not hold the parameters of this network: {first}") from None
