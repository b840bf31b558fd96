"""What machines read of a run: an entry that the registry's schema accepts, and a model card; public facts alone."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import privypurse as pp
from privypurse.report.card import model_card
from privypurse.report.facts import PublicFacts, public_facts
from privypurse.report.registry import deployment, deployment_yaml
from run_folders import trained

ABOUT = """
[about]
name = "Churn \u201c2026\u201d <script>alert(1)</script> | x"
description = "Who leaves: yes\\nor no \u0085"
controller = "Bank of Oslo"
contact = "dpo@example.org"
purpose = "To plan *branches*"
region = "Norway"
sector = "Finance"
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> PublicFacts:
    """With budgets in levels, a given σ, and tests on public records."""
    return public_facts(trained(tmp_path_factory.mktemp("told"), plan="noise_multiplier = 3.0", more=ABOUT))


@pytest.fixture(scope="module")
def bare(facts: PublicFacts) -> PublicFacts:
    """A run of which nobody said anything, with σ solved from all budgets."""
    bare = replace(facts, about={}, levels={}, protects="data", noise_multiplier=None, delta=None, test=None)
    return replace(bare, steps=None, under_ledger=None)


def answered() -> PublicFacts:
    cost = {"epsilon": 0.19, "amount": 0.0025, "currency": "gdp", "delta": 1e-05}
    answer = {"value": 3.0, "noise": 20.0, "released": [3.0], "cost": cost, "says": "costs at most ε = 0.19"}
    return PublicFacts(command="query", files=("answer.json",), answer=answer)


@pytest.mark.needs("registry")
def test_the_registrys_schema_accepts_every_entry(facts: PublicFacts, bare: PublicFacts) -> None:
    from jsonschema import Draft202012Validator, FormatChecker

    schema = yaml.safe_load((Path(os.environ["PRIVYPURSE_REGISTRY"]) / "deployments-schema.yaml").read_text("utf-8"))
    checker = Draft202012Validator(schema, format_checker=FormatChecker())
    for each in (facts, bare, answered(), replace(facts, terms={"adversary": "server"})):
        entry = yaml.safe_load(deployment_yaml(each))
        assert [error.message for error in checker.iter_errors(entry)] == []
    example = yaml.safe_load((Path(os.environ["PRIVYPURSE_REGISTRY"]) / "example.yaml").read_text("utf-8"))
    assert not list(checker.iter_errors(example))
    broken = yaml.safe_load(deployment_yaml(facts))
    broken["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] = "1 to 4"  # no number
    broken["deployment"]["basic"] |= {"people": 40, "publication_date": "not stated"}
    assert len(list(checker.iter_errors(broken))) == 3


def test_the_yaml_reads_back_to_the_same_whatever_texts_are_in_it(facts: PublicFacts, bare: PublicFacts) -> None:
    for each in (facts, bare, answered()):
        assert yaml.safe_load(deployment_yaml(each)) == deployment(each)
    entry = deployment(facts)["deployment"]
    assert entry["basic"]["description"] == "Who leaves: yes\nor no \u0085"
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 4.0, "delta": 1e-05}


def test_an_entry_says_that_everybody_has_their_own_epsilon(facts: PublicFacts, bare: PublicFacts) -> None:
    details = deployment(facts)["deployment"]["privacy_loss"]["privacy_parameters_details"]
    assert "strict (1), medium (2), relaxed (4)" in details
    assert "presence and declared ε" in details
    loss = deployment(bare)["deployment"]["privacy_loss"]
    assert "privacy_parameters" not in loss  # the largest ε would be somebody's
    assert "not told" in loss["privacy_parameters_details"]
    assert deployment(bare)["tier"] == 1
    assert deployment(facts)["tier"] == 3
    assert deployment(answered())["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] == 0.19


@pytest.mark.parametrize("unit", [None, "record", "person"])
def test_an_answer_claims_no_unit_and_no_neighbours_that_nobody_stated(unit: str | None) -> None:
    """A question without ids is about records: "person, with all their records" would promise more than was kept."""
    loss = deployment(replace(answered(), unit=unit))["deployment"]["privacy_loss"]
    assert loss["privacy_unit"].split(",")[0] == (unit or "not stated")
    assert loss["privacy_unit_details"] == "not stated"
    variant = deployment(answered())["deployment"]["dp_variant"]
    assert variant["unprotected_quantities"] == "not stated"


def test_what_was_done_before_training_is_said(facts: PublicFacts) -> None:
    def said(facts: PublicFacts) -> str:
        return str(deployment(facts)["deployment"]["implementation"]["preprocessing_and_hyperparameter_tuning"])

    assert said(facts) == "Columns go in by public constants; nothing was estimated from rows. Tuning: not stated"
    asked = replace(facts, files=(*facts.files, "ranges.json"), about={**facts.about, "tuning": "on public data"})
    assert "paid with a share of each ε" in said(asked)
    assert said(asked).endswith("Tuning: on public data")


def test_a_seeded_run_is_not_registered_and_its_card_says_so(facts: PublicFacts) -> None:
    seeded = replace(facts, seeded=True)
    with pytest.raises(pp.InvalidInput, match="seeded"):
        deployment(seeded)
    assert "NOT private" in model_card(seeded)
    assert "ε is above" not in model_card(seeded)


def test_a_card_has_a_section_on_privacy(facts: PublicFacts, bare: PublicFacts) -> None:
    card = model_card(facts)
    head = yaml.safe_load(card.split("---\n")[1])
    assert "differential-privacy" in head["tags"]
    privacy = card.split("## Privacy\n")[1].split("## Evaluation")[0]
    assert "| Nobody's ε is above | 4 |" in privacy
    assert "| Audit | not stated |" in privacy
    assert "| δ | 1e-05 |" in privacy
    assert "times in 1" in privacy  # how often the best attacker is right
    assert "| Accuracy | " in card.split("## Evaluation\n")[1]
    assert "not stated" in model_card(bare).split("## Privacy\n")[1]
    assert "not stated" not in model_card(bare).split("## Intended use")[0]  # no description that says nothing


def test_an_entry_names_no_author_that_nobody_stated(facts: PublicFacts) -> None:
    """Who fills out an entry need not be who answers for the data."""
    told = deployment(facts)["deployment"]["administrative"]
    assert told["registry_authors"] == ["not stated"]
    assert "name registry_authors, and check tier" in told["notes"]


def test_what_people_write_is_no_mark_up_in_a_card(facts: PublicFacts) -> None:
    title = model_card(facts).split("# ", 1)[1].splitlines()[0]
    assert title == "Churn “2026” &lt;script&gt;alert(1)&lt;/script&gt; \\| x"
    assert "\\*branches\\*" in model_card(facts)
    assert "Who leaves: yes or no" in model_card(facts)


def test_there_is_no_card_of_an_answer() -> None:
    with pytest.raises(pp.InvalidInput, match="no model"):
        model_card(answered())


@pytest.mark.hf
@pytest.mark.needs("hf")
def test_hugging_face_reads_the_card(facts: PublicFacts) -> None:
    from huggingface_hub import ModelCard

    card = ModelCard(model_card(facts))
    assert card.data.library_name == "pytorch"
    assert "## Privacy" in card.text


def test_no_number_of_people_and_no_digest_is_in_either(facts: PublicFacts) -> None:
    """40 people, in a table of 40 rows: exact head counts are nobody else's business (rule 6)."""
    facts = replace(facts, test=None)  # figures of the model on others have any digits
    for text in (model_card(facts), deployment_yaml(facts), json.dumps(deployment(facts))):
        assert "40" not in text
        assert not [word for word in text.split() if len(word) >= 32 and word.isalnum()]
