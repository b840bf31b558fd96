"""For all tests of federated training."""

import pytest


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages ask for a run and a node; there are none here."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
