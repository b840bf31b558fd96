"""A trained model as files that run without Privy Purse: ONNX for any runtime, and what torch.export writes.

Both take encoded features (``encoder.json`` says how a table becomes these) and give what `Predictor` gives.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from privypurse.errors import InvalidInput
from privypurse.runs.folder import RunFolder
from privypurse.runs.predictor import PARAMETERS, Answers, predictor_of

ONNX, PT2 = "export.onnx", "export.pt2"
INPUT, OUTPUT = "features", "answers"


def export(run: str | Path, *, trust_code: bool = False) -> RunFolder:
    """Write export.onnx and export.pt2 into a run's folder, public where the model is.

    ``trust_code``: as in `load`.
    """
    folder = RunFolder.open(run)
    predictor = predictor_of(folder, trust_code=trust_code)
    public = folder.files[PARAMETERS].public
    with _quiet():
        program = _program(predictor.answers, predictor.shape)
        for node in program.graph_module.graph.nodes:
            node.meta.pop("stack_trace", None)  # it names folders of this machine
        saved = io.BytesIO()
        torch.export.save(program, saved)
        onnx = torch.onnx.export(program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False)
    assert onnx is not None
    content = onnx.model_proto
    graph = content.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]  # names of classes and modules, which nobody needs there
    folder.add(ONNX, lambda file: file.write(content.SerializeToString()), public=public)
    folder.add(PT2, lambda file: file.write(saved.getvalue()), public=public)
    return folder


def _program(answers: Answers, shape: tuple[int, ...]) -> torch.export.ExportedProgram:
    """The model for any number of records."""
    records = torch.export.Dim("records")
    try:
        return torch.export.export(answers, (torch.zeros(2, *shape),), dynamic_shapes=({0: records},))
    except Exception as error:  # whatever torch.export cannot follow in a network of one's own
        first = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"torch.export cannot follow this network: {type(error).__name__}: {first}; write it without Python that "
            "depends on values of tensors or on the number of records, or predict with pp.load"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about its own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
