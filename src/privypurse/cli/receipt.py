"""privypurse receipt: what one person allowed, what was used of it, and what that means."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from privypurse._storage import replace_text
from privypurse.cli.arguments import add_ledger_options, open_latest, person_id, writing
from privypurse.cli.showing import say

SHORT = "what one person allowed, what was used of it, and what that means"
LONG = """\
Write the receipt of one person: what they allowed and when, which share of their purse each use took, what is left,
what ε means as a bet, which promise was made, and how to withdraw. It holds nothing of anybody else.

A ledger keeps no ids, only keyed hashes of them: its key is needed, as a file (--key) or in $PRIVYPURSE_LEDGER_KEY.
A receipt is for the person alone, and files are written so that only you can read them. docs/receipts.md explains the
fields of the JSON-LD, which has the names of ISO/IEC TS 27560:2023. An old copy of the ledger, which would show
fuller purses, is refused by its anchor, and by the folders of runs in the working folder and beside the ledger.

examples:
  privypurse receipt --ledger sqlite:///purses.db --key ledger.key --person C0431
  privypurse receipt --person C0431 --html receipt.html --json receipt.json --contact "privacy@example.org"
"""


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--person", type=person_id, metavar="ID", required=True, help="whose receipt")
    add_ledger_options(command)
    command.add_argument("--html", metavar="FILE", type=Path, help="write it as one self-contained page")
    command.add_argument("--json", metavar="FILE", type=Path, help="write it as JSON-LD")
    command.add_argument("--contact", default="", help="whom to tell to withdraw; said on the receipt")


def run(options: argparse.Namespace, console: Console) -> None:
    receipt = open_latest(options).receipt(options.person, contact=options.contact)
    if options.html is None and options.json is None:
        say(console, receipt.text())
    if options.html is not None:
        _write(options.html, receipt.html(), console)
    if options.json is not None:
        _write(options.json, json.dumps(receipt.json_ld(), indent=2, ensure_ascii=False) + "\n", console)


def _write(path: Path, content: str, console: Console) -> None:
    writable = content.encode("utf-8", "backslashreplace").decode()  # an id in bytes may be no text
    with writing(path):
        replace_text(path, writable)
    say(console, f"written to {path}")
