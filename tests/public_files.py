"""All that anybody may see of a run: its public files, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path

from privypurse.errors import InvalidInput
from privypurse.report.card import model_card
from privypurse.report.facts import PublicFacts, public_facts
from privypurse.report.page import Edition, _page, public_sections
from privypurse.report.registry import deployment_yaml


def whole(folder: Path) -> dict[str, str]:
    """Every public file, the page, the model card and the registry's entry, or why there is none."""
    listed = ("public.json", *json.loads((folder / "public.json").read_text("utf-8"))["files"])
    return {name: (folder / name).read_text("utf-8") for name in listed} | made_of(public_facts(folder))


def made_of(facts: PublicFacts) -> dict[str, str]:
    """Page, card and entry of these facts."""
    try:
        entry = deployment_yaml(facts)
    except InvalidInput as error:
        entry = str(error)
    page = _page(facts, public_sections(facts), Edition.PUBLIC)
    return {"page": page, "card": model_card(facts), "registry": entry}
