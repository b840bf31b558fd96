"""deployment.yaml: a run as an entry of the OpenDP deployments registry.

The fields are those of its schema (https://github.com/opendp/deployments-registry-data). An entry has one ε; here
everybody has their own, so it names the largest that may be told, and the details say whose is whose to choose. All
of it is made of public facts: no head count, no digest of data, and no σ that was solved from people's budgets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from privypurse.errors import InvalidInput
from privypurse.report.facts import PublicFacts
from privypurse.runs.about import NOT_STATED
from privypurse.runs.folder import today
from privypurse.version import __version__

_TIERS = ("name", "controller", "description", "purpose", "region")
_PROOFS = {"pld": "privacy loss distributions, pessimistic", "rdp": "Rényi divergences", None: "Gaussian DP"}
_TO_DO = "Before it is handed in: name registry_authors, and check tier, which follows from the fields filled in."
_NEIGHBOURS = {
    "data": "The same list of people and budgets; one of them contributes nothing.",
    "presence": "One person, with data and declared ε, is there or not.",
}
_UNPROTECTED = {
    "data": "The list of budgets: public constants were solved from everybody's ε or from their number.",
    "presence": "Nothing that follows from people: all public constants were fixed beforehand.",
}


def deployment(facts: PublicFacts) -> dict[str, Any]:
    """The entry as plain data; it is a draft until whoever answers for it has read it."""
    if facts.seeded:
        raise InvalidInput("this run was seeded, a test that protects nobody: there is nothing to register")
    about = {name: said for name, said in facts.about.items() if said != NOT_STATED}
    return {
        "url_slug": _slug(about.get("name", f"{facts.data or facts.command}"), about.get("date", "")),
        "status": "Draft",
        "tier": 3 if all(name in about for name in _TIERS) else 1,
        "deployment": {
            "basic": _basic(facts, about),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": about.get("data subjects", NOT_STATED),
                "unprotected_quantities": _UNPROTECTED.get(facts.protects or "", NOT_STATED),
            },
            "privacy_loss": _privacy_loss(facts),
            "deployment_model": _model(facts),
            "accounting": {
                "post_processing": "Whatever is computed from what was released costs nobody anything.",
                "composition": _composition(facts),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _before(facts, about.get("tuning", NOT_STATED)),
                "mechanisms": _mechanisms(facts),
            },
            "administrative": {
                "notes": f"Written by privypurse {__version__} from the public files of the run. {_TO_DO}",
                "registry_authors": [NOT_STATED],
            },
        },
    }


def deployment_yaml(facts: PublicFacts) -> str:
    """The same as YAML."""
    return "\n".join(_lines(deployment(facts))) + "\n"


def _basic(facts: PublicFacts, about: Mapping[str, str]) -> dict[str, Any]:
    asked = facts.answer is not None
    return {
        "name": about.get("name", f"{'Answer about' if asked else 'Model of'} {facts.data or NOT_STATED}"),
        "data_curators": [about.get("controller", NOT_STATED)],
        "description": about.get("description", NOT_STATED),
        "intended_use": about.get("purpose", NOT_STATED),
        "data_product_type": "Summary statistics" if asked else "Machine learning model",
        "data_product_region": about.get("region", NOT_STATED),
        "publication_date": about.get("date", today()),
        **({"data_product_sector": about["sector"]} if "sector" in about else {}),
    }


def _privacy_loss(facts: PublicFacts) -> dict[str, Any]:
    cost = {} if facts.answer is None else facts.answer["cost"]
    epsilon, delta = cost.get("epsilon", facts.epsilon), cost.get("delta", facts.delta)
    told = {name: value for name, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    units = {"record": "record, each counted as one person", "person": "person, with all their records"}
    return {
        "privacy_unit": units.get(facts.unit or "", NOT_STATED),
        "privacy_unit_details": _NEIGHBOURS.get(facts.protects or "", NOT_STATED),
        **({"privacy_parameters": told} if told else {}),
        "privacy_parameters_details": _personal(facts),
    }


def _personal(facts: PublicFacts) -> str:
    """Whose ε it is."""
    if facts.answer is not None:
        return f"This answer {facts.answer['says']}."
    said = ["Everybody has an ε of their own, and what was released costs nobody more than theirs."]
    if facts.levels:
        levels = ", ".join(f"{name} ({epsilon:g})" for name, epsilon in facts.levels.items())
        said.append(f"People could choose from: {levels}. Who chose what is not told.")
    if facts.at_most is not None:
        said.append(f"Nobody's is above {facts.at_most:g}, whatever they granted.")
    elif not facts.levels:
        said.append("Which values people granted is not told.")
    if facts.simulated_budgets:
        said.append("Budgets are simulated: nobody in the data granted them.")
    if facts.promise:
        said.append(facts.promise)
    return " ".join(said)


def _before(facts: PublicFacts, tuning: str) -> str:
    """What was done with the data before, and how settings were found."""
    asked = (
        "Ends and categories of columns were asked of the people (ranges.json), paid with a share of each ε above. "
    )
    given = "Columns go in by public constants; nothing was estimated from rows. "
    table = given if "encoder.json" in facts.files else ""
    return f"{asked if 'ranges.json' in facts.files else table}Tuning: {tuning}"


def _model(facts: PublicFacts) -> dict[str, Any]:
    lasting = {True: "A ledger keeps each person's purse for life, over all uses.", None: NOT_STATED}
    curator = "The curator holds the data and is trusted; whoever sees what was released is not."
    server = "Each client is trusted with its own records; the server and the public see noisy updates."
    return {
        "model_name": "Central" if facts.terms is None else "Federated",
        "actors": curator if facts.terms is None else server,
        "release_type": "One release",
        "release_type_details": lasting.get(facts.under_ledger, "Other uses of the same data add up to it."),
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _composition(facts: PublicFacts) -> str:
    proof = _PROOFS.get(facts.accountant, str(facts.accountant))
    if facts.answer is not None:
        return "One Gaussian release, in Gaussian DP; each person's purse is charged for it."
    steps = "The steps" if facts.steps is None else f"{facts.steps:,} steps"
    beyond = "" if facts.filter is None else f" Beyond the fixed steps a filter ({facts.filter}) stops each person."
    return f"{steps} of Poisson-subsampled Gaussian noise, composed for each level of ε by {proof}.{beyond}"


def _mechanisms(facts: PublicFacts) -> str:
    constants = {
        "method": facts.method,
        "clip norm": facts.clip_norm,
        "divisor": facts.batch_size,
        "noise multiplier": facts.noise_multiplier,
    }
    told = ", ".join(f"{name} {value}" for name, value in constants.items() if value is not None)
    kind = (
        "Gaussian noise on clipped sums" if facts.answer is not None else "DP-SGD with personal rates or clip norms"
    )
    return (
        f"{kind}{f' ({told})' if told else ''}, by privypurse. Noise and coins from a cryptographic generator; sums "
        "and noise on a public grid in float64. Time and memory use are not covered."
    )


def _slug(name: str, date: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{name} {date}".lower()).strip("-") or "privypurse"


def _lines(content: Mapping[str, Any], indent: str = "") -> list[str]:
    """YAML of names with text, numbers, lists of text, and names below them."""
    found = []
    for name, value in content.items():
        if isinstance(value, Mapping):
            found += [f"{indent}{name}:", *_lines(value, indent + "  ")]
        elif isinstance(value, list):
            found += [f"{indent}{name}:", *(f"{indent}  - {_scalar(each)}" for each in value)]
        else:
            found.append(f"{indent}{name}: {_scalar(value)}")
    return found


def _scalar(value: str | float) -> str:
    """Text between double quotes, as in JSON; numbers with a point, for YAML 1.1 takes 1e-05 for text."""
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in quoted)
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}.0{e}{exponent}" if e and "." not in mantissa else repr(value)
