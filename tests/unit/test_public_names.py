"""The public face: every name that is listed can be had, and what needs torch says so where it is missing."""

import runpy
import subprocess
import sys

import pytest

import privypurse as pp


@pytest.mark.parametrize("module", [pp, pp.rounds, pp.federated], ids=lambda module: module.__name__)
def test_every_public_name_can_be_had(module):
    assert dir(module) == sorted(module.__all__)  # not the rooms and helpers that lie there too
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = module.nothing_of_this_name


def test_the_package_runs_as_the_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["privypurse", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("privypurse", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"privypurse {pp.__version__}\n"


@pytest.mark.slow
def test_without_torch_plans_are_made_and_the_rest_says_what_it_needs():
    code = (
        "import sys\n"
        "class WithoutTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, WithoutTorch())\n"
        "import privypurse as pp\n"
        "pp.plan(pp.Budgets([1.0] * 9), 'uniform', steps=2, batch_size=3, accountant='rdp')\n"
        "pp.rounds.Schedule, pp.federated.Terms\n"
        "for module, name in ((pp, 'train'), (pp.rounds, 'train'), (pp.federated, 'Client')):\n"
        "    try:\n"
        "        getattr(module, name)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split(" needs ")[0] for line in lines] == [
        "privypurse.train",
        "privypurse.rounds.train",
        "privypurse.federated.Client",
    ]
    assert all("pip install '.[training]' in a clone" in line for line in lines)
