"""The Flower app in examples/federated: what people grant is theirs, whatever the server offers."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from privypurse.accounting import CertifiedTable
from privypurse.federated.terms import Offer, Terms

APP = Path(__file__).parents[3] / "examples" / "federated"
TERMS = Terms(
    rounds=1, local_steps=1, noise_multiplier=5.0, batch_size=20, learning_rate=1.0, clients=4, accountant="rdp"
)


@pytest.mark.filterwarnings("ignore:Nobody here takes part:privypurse.errors.PrivyPurseWarning")
@pytest.mark.parametrize("ledger", [False, True])
def test_an_offer_with_a_larger_delta_is_sat_out(
    tmp_path: Path, ledger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(APP))
    from silos import data  # type: ignore[import-not-found]
    from silos.client_app import client_of  # type: ignore[import-not-found]

    for delta, taking_part in ((data.DELTA, True), (data.DELTA / 10, True), (0.8, False)):
        home = tmp_path / str(delta)
        node = {"silo": 3, "folder": str(home / "book"), **({"ledger": str(home / "purses")} if ledger else {})}
        offer = Offer(replace(TERMS, delta=delta), CertifiedTable(np.array([0.01]), np.array([0.5])))
        client = client_of(SimpleNamespace(node_config=node, run_config={}), offer)
        assert (client.plan.rates.max() > 0) == taking_part
        client.close()
