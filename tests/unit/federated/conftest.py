"""For all tests of federated training."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import privypurse as pp


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages ask for a run and a node; there are none here."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(scope="module")
def empty_ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import paying_client

    folder = tmp_path_factory.mktemp("ledgers")
    for adversary in ("server", "public"):
        made = {"epsilons": [0.5, 1.0], "delta": 1e-3, "adversary": adversary, "key": paying_client.KEY}
        pp.Ledger.create(f"sqlite:///{folder / adversary}", **made).join(paying_client.IDS, 1.0)
    return folder


@pytest.fixture
def new_ledger(empty_ledgers: Path, tmp_path: Path) -> Callable[..., pp.Ledger]:
    """Makes a copy of one in which nothing was charged as yet."""
    import paying_client

    def copied(adversary: str = "server") -> pp.Ledger:
        name = f"{adversary}-{len(list(tmp_path.iterdir()))}.db"
        shutil.copy(empty_ledgers / adversary, tmp_path / name)
        return pp.Ledger.open(f"sqlite:///{tmp_path / name}", key=paying_client.KEY)

    return copied
