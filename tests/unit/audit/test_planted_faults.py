"""Every planted fault is seen by an audit that clears the pipeline as it stands; and so is Opacus's divisor."""

import pytest
import torch
from benchmarks import data_canaries, faults, opacus_divisor

import privypurse as pp
from privypurse.errors import InvalidInput

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RUNS = {"side by side": 8000, "in sequence": 60}


@pytest.fixture(scope="module")
def plan() -> pp.Plan:
    return faults.audited_plan()


@pytest.mark.parametrize("fault", [faults.SOUND, faults.SOUND_IN_SEQUENCE], ids=lambda fault: fault.road)
def test_the_pipeline_as_it_stands_is_cleared(plan: pp.Plan, fault: faults.Fault) -> None:
    found, flagged, _ = faults.audited(fault, plan, RUNS[fault.road], seed=20)
    assert not flagged
    assert found.epsilon <= plan.spent_by_level()[0]


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_flagged(plan: pp.Plan, fault: faults.Fault) -> None:
    found, flagged, _ = faults.audited(fault, plan, RUNS[fault.road], seed=40)
    assert flagged
    expected = {
        "the same noise in every step": "step differences",
        "division by the realised batch": "less noise",
        "a loss that mixes records": "others pushed back",
    }
    assert found.score == expected.get(fault.name, "likelihood ratio")


def test_faults_leave_nothing_behind(plan: pp.Plan) -> None:
    for fault in faults.FAULTS:
        with fault.planted():
            pass
    assert not faults.audited(faults.SOUND, plan, 2000, seed=60)[1]


def test_the_mixing_loss_is_refused_once_it_shows_in_a_batch_that_is_looked_at(plan: pp.Plan) -> None:
    """Among records of one length it mixes nothing; with this seed the long one is in the second batch."""
    mixing = faults.Fault("", faults.nullcontext, "in sequence", others=20, loss_fn=faults.mixing_loss)
    with pytest.raises(InvalidInput, match="the loss of a record changes with the other records"):
        faults.audited(mixing, plan, 6, seed=1)


def test_data_canaries_see_a_mixing_loss_in_one_training() -> None:
    plan = data_canaries.audited_plan()
    certified = plan.spent_by_level()[0]
    assert data_canaries.bound(data_canaries.sound_loss, plan, seed=4) <= certified
    assert data_canaries.bound(data_canaries.mixing_loss, plan, seed=4) > 2 * certified


def test_opacus_tells_by_its_divisor_who_is_there_and_ours_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opacus_divisor, "WIDTH", 10_000)
    torch.manual_seed(0)
    opacus = opacus_divisor.told(lambda people: opacus_divisor.opacus_noise(people, 60))
    assert opacus.epsilon > 2 * opacus_divisor.claimed_by_opacus()
    ours = opacus_divisor.told(lambda people: opacus_divisor.our_noise(people, 60, opacus_divisor.SIGMA))
    assert ours.epsilon <= 1.0
    assert opacus_divisor.our_plan(40, opacus_divisor.SIGMA).promise is pp.Promise.PRESENCE


def test_a_solved_noise_multiplier_tells_who_is_there_and_promises_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opacus_divisor, "WIDTH", 40_000)
    ours = opacus_divisor.told(lambda people: opacus_divisor.our_noise(people, 100, None))
    assert ours.epsilon > 1.0
    assert opacus_divisor.our_plan(40, None).promise is pp.Promise.DATA
