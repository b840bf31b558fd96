"""A run that names no ledger, where files show that one is kept: refused before anybody's ε counts anew."""

from pathlib import Path

import pytest

import privypurse as pp
from ledger_tools import new_ledger
from privypurse import cli
from privypurse.runs.beside_ledger import refuse_beside_ledger
from privypurse.runs.config import RunConfig, parse_config
from run_folders import TWO_STEPS

CONFIG = """
{first}
[data]
table = "tables/people.csv"
label = "y"
classes = ["0", "1"]
features = {{ x = {{ low = 0, high = 1 }} }}
[budgets]
{granted}
{two_steps}
[training]
out = "runs/second"
{more}
"""
CONFIG = CONFIG.replace("{two_steps}", TWO_STEPS)


def config(first: str = "", granted: str = 'epsilon = "epsilon"', more: str = "") -> RunConfig:
    return parse_config(CONFIG.format(first=first, granted=granted, more=more))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tables", "runs/first", "tables/answer", "elsewhere/first"):
        Path(name).mkdir(parents=True)


@pytest.mark.parametrize("sign", ["runs/first/anchor.json", "tables/answer/anchor.json"])
def test_an_anchor_beside_the_run_or_the_table_is_a_sign(sign: str) -> None:
    refuse_beside_ledger(config())
    ledger = new_ledger(Path.cwd())
    ledger.write_anchor("elsewhere/first/anchor.json")
    Path(sign).write_text("{}")  # no anchor
    refuse_beside_ledger(config())
    ledger.write_anchor(sign)
    with pytest.raises(pp.InvalidInput, match=f'{sign} is the anchor of a ledger.*ledger = "sqlite:///FILE"'):
        refuse_beside_ledger(config())


def test_the_ledger_of_questions_beside_the_table_is_a_sign() -> None:
    Path("tables/people.csv").write_text("x,y,epsilon\n1,1,1\n")
    Path("people.csv").symlink_to("tables/people.csv")
    Path("tables/people.csv.ledger").touch()
    by_link = CONFIG.replace("tables/people.csv", "people.csv").format(first="", granted="", more="")
    for one in (config(), parse_config(by_link)):
        with pytest.raises(pp.InvalidInput, match=r"people\.csv\.ledger is the ledger of this table"):
            refuse_beside_ledger(one)


@pytest.mark.parametrize(
    "meant",
    [
        {"first": 'ledger = "none"'},
        {"more": "seed = 0"},
        {"granted": "simulate = { epsilon = [1.0], shares = [1.0] }"},
    ],
)
def test_what_is_meant_so_or_takes_nothing_goes_on(meant: dict[str, str]) -> None:
    Path("tables/people.csv.ledger").touch()
    refuse_beside_ledger(config(**meant))


@pytest.mark.parametrize("option", ["--key", "--anchor"])
def test_a_key_or_an_anchor_without_a_ledger_is_refused(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRIVYPURSE_LEDGER", raising=False)
    Path("config.toml").write_text(CONFIG.format(first="", granted='epsilon = "epsilon"', more=""))
    assert cli.main(["train", "config.toml", option, "some.file"]) == 2
    assert f"{option} is for a ledger that --ledger names" in capsys.readouterr().err
