"""privypurse export: a run's model for programs without Privy Purse."""

from __future__ import annotations

import argparse

from rich.console import Console

from privypurse.cli.arguments import add_trust_option, need
from privypurse.cli.showing import say

SHORT = "a run's model as ONNX, for programs with neither Privy Purse nor PyTorch"
LONG = """\
Write a run's model as files that other programs run, into its folder:

  export.onnx   for ONNX Runtime and others
  export.pt2    for PyTorch alone: torch.export.load

Both take `features`, float32[n, width], which encoder.json (in the folder already) says how to make of a table, and
give `answers`: the probability of each class or label, or the number. docs/serving.md has the program in NumPy
that applies encoder.json. The files are public where the model is: they hold the same parameters, and no data.

It needs the extra onnx: pip install '.[onnx]' in a clone (nothing is on PyPI yet). Programs that use the files need
ONNX Runtime alone.

example:
  privypurse export privypurse-run"""


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="RUN", help="the folder of a run")
    add_trust_option(command)


def run(options: argparse.Namespace, console: Console) -> None:
    need("export")
    need("export", "onnx", "onnxscript", extra="onnx")
    from privypurse.runs.export import ONNX, PT2, export

    folder = export(options.folder, trust_code=options.trust_code)
    public = "public, as the model is" if folder.files[ONNX].public else "internal, as the model is"
    say(console, f"{ONNX} and {PT2} written to {folder.path}; {public}")
