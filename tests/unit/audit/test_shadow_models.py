"""Shadow models are private trainings by the plan: members are found where privacy was left out alone."""

import numpy as np
import pytest
import torch
from torch import nn

import privypurse as pp
from privypurse.audit import lira
from privypurse.audit.by_group import by_group
from privypurse.audit.shadow_models import ShadowTraining, loss_of
from privypurse.errors import InvalidInput

PEOPLE, FEATURES = 60, 300


def training(epsilon: float = 1.0) -> ShadowTraining:
    plan = pp.plan(
        pp.Budgets(np.repeat([epsilon, 2 * epsilon], PEOPLE // 4), delta=1e-5),
        steps=6,
        batch_size=10,
        clip_norm=1.0,
        accountant="rdp",
    )
    generator = torch.Generator().manual_seed(0)
    return ShadowTraining(
        plan=plan,
        level_of=np.arange(PEOPLE) % 2,
        inputs=torch.randn(PEOPLE, FEATURES, generator=generator),
        labels=torch.randint(0, 2, (PEOPLE,), generator=generator),
        model=lambda: nn.Linear(FEATURES, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_members_are_found_without_privacy_and_hardly_with_it() -> None:
    """Labels are coins: whatever a model knows of them it knows by heart."""
    made, found = training(), {}
    member = lira.halves(made.level_of, 12, np.random.default_rng(0))
    for private in (True, False):
        torch.manual_seed(0)
        models = [made.trained(mark, seed=number, private=private) for number, mark in enumerate(member)]
        phi = np.stack([made.confidence(model) for model in models])
        everybody = np.zeros(PEOPLE, dtype=int)
        (found[private],) = by_group(lira.scores(phi, member, "offline"), member, everybody, ["all"])
    assert found[False].auc > 0.9
    assert found[True].auc < 0.65


def test_each_model_trains_on_its_own_records_at_their_own_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def kept(
        model: nn.Module,
        optimizer: object,
        dataset: torch.utils.data.TensorDataset,
        plan: pp.Plan,
        *_: object,
        **__: object,
    ) -> None:
        seen["plan"], seen["inputs"] = plan, dataset.tensors[0]

    monkeypatch.setattr("privypurse.audit.shadow_models.train", kept)
    made = training()
    member = np.arange(PEOPLE) < 31
    made.trained(member)
    assert torch.equal(seen["inputs"], made.inputs[:31])
    np.testing.assert_array_equal(seen["plan"].rates, made.plan.levels.rate[made.level_of[:31]])
    assert seen["plan"].noise_multiplier == made.plan.noise_multiplier


def test_a_loss_follows_from_the_confidence() -> None:
    model, made = nn.Linear(FEATURES, 2), training()
    wanted = nn.functional.cross_entropy(model(made.inputs), made.labels, reduction="none").detach().numpy()
    np.testing.assert_allclose(loss_of(made.confidence(model)), wanted, rtol=1e-5)


def test_records_without_a_level_are_refused() -> None:
    made = training()
    with pytest.raises(InvalidInput, match="59 levels"):
        ShadowTraining(made.plan, made.level_of[1:], made.inputs, made.labels, made.model, made.optimizer)
