"""Features less their centre: it is what people's weights make it, and all steps together are the plan's."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from privypurse.errors import InvalidInput
from privypurse.plans.promise import Promise
from reproductions import centring, rival_training
from reproductions.choice import CENTRED, Settings
from reproductions.plans import plan_of
from reproductions.pretrained.probe import probe, scaled

pytestmark = pytest.mark.filterwarnings("ignore:seed=")
N, WIDTH = 400, 6
SETTINGS = Settings(network="probe", scaling=CENTRED, steps=80, batch_size=200, momentum=0.0, decays=(0.0,))


def two_groups() -> tuple[torch.Tensor, np.ndarray]:
    """Features of length 1 and ε: those who grant more lie elsewhere."""
    values = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0)) / 3
    values[: N // 2, 0] += 2.0
    values[N // 2 :, 1] += 2.0
    return F.normalize(values), np.repeat([20.0, 80.0], N // 2)


@pytest.mark.parametrize("method", ["sample", "scale", "uniform", "exclude"])
def test_the_centre_is_the_mean_by_everybodys_weight(method: str) -> None:
    features, epsilon = two_groups()
    plan = plan_of(method, epsilon, 1e-5, steps=40 * 100, batch_size=200, clip_norm=0.1)
    rates = torch.as_tensor(plan.rates).float()
    weight = rates * torch.as_tensor(plan.clip_norms).float()
    expected = (weight @ features) / weight.sum()
    found = centring.centre(features, centring.parts(plan)[0], seed=1)
    # 100 steps: noise of σ C / (100 Σ qc) in each of the sums, and who is drawn.
    noise = plan.noise_multiplier * plan.clip_norm / (10 * float(weight.sum()))
    drawn = float((weight**2 / rates.clamp_min(1e-9)).sum().sqrt() / (10 * weight.sum()))
    bound = 5 * np.hypot(noise, drawn) * 2
    assert (found - expected).abs().max() < bound
    if method != "uniform":  # of the plain mean and of the weighted one it is told which it is
        assert (features.mean(dim=0) - expected).abs().max() > bound
    assert torch.equal(centring.centre(features, None, seed=1), features.mean(dim=0))


def test_the_steps_of_both_parts_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    features, epsilon = two_groups()
    labels = torch.as_tensor(np.repeat([0, 1], N // 2))
    taken, trained, train = [], [], centring.pp.train

    def seen(*given, **options):
        taken.append((given[3], options["seed"]))
        done = train(*given, **options)
        trained.append((given[0], given[2].tensors[0]))
        return done

    monkeypatch.setattr(centring.pp, "train", seen)
    model, _, said = rival_training.trained(
        "sample", SETTINGS, lambda: probe(WIDTH, 2), (features, labels), epsilon, 1e-5, seed=3
    )
    plan = plan_of("sample", epsilon, 1e-5, steps=80, batch_size=200, clip_norm=SETTINGS.clip_norm)
    (first, seed), (rest, other) = taken
    assert (first.steps, rest.steps) == (2, 78)
    assert seed != other
    for part in (first, rest):
        assert part.promise is Promise.PART
        assert np.array_equal(part.rates, plan.rates)
        assert np.array_equal(part.clip_norms, plan.clip_norms)
        assert (part.noise_multiplier, part.clip_norm, part.batch_size) == (
            plan.noise_multiplier,
            plan.clip_norm,
            plan.batch_size,
        )
    assert said["spent"] == sorted({round(float(each), 4) for each in plan.spent_by_level()})
    # What centres the records of the other steps is what the first steps released, and nothing more exact.
    (sums, _), (network, records) = trained
    released = sums.weight.detach()[:, 0]
    assert isinstance(model, centring.Centred)
    assert model is network
    assert torch.equal(model.centre, released[:-1] / released[-1])
    assert torch.equal(records, features)


def test_what_noise_alone_says_is_no_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of vectors of length 1 is no longer than that, and weights below 0 are noise."""
    features, epsilon = two_groups()
    plan = plan_of("sample", epsilon, 1e-5, steps=80, batch_size=200, clip_norm=0.1)
    for last, expected in ((-1.0, torch.zeros(WIDTH)), (0.01, torch.eye(WIDTH)[0]), (10.0, torch.eye(WIDTH)[0] / 5)):

        def told(sums, *_, last=last, **__):
            sums.weight.detach()[:, 0] = torch.tensor([2.0, *[0.0] * (WIDTH - 1), last])

        monkeypatch.setattr(centring.pp, "train", told)
        assert torch.equal(centring.centre(features, centring.parts(plan)[0], seed=1), expected)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plan: replace(plan, promise=Promise.NONE), "promise is 'none'"),
        (lambda plan: replace(plan, promise=Promise.PART), "promise is 'part'"),
        (lambda plan: replace(plan, shape=replace(plan.shape, extra_steps=20)), "extra_steps"),
        (lambda plan: replace(plan, shape=replace(plan.shape, steps=1)), "steps is 1"),
        (lambda plan: replace(plan, shape=replace(plan.shape, steps=80_000)), "spends more than it promises"),
    ],
)
def test_only_a_whole_plan_that_is_kept_is_taken_apart(change, said) -> None:
    _, epsilon = two_groups()
    plan = plan_of("sample", epsilon, 1e-5, steps=80, batch_size=200, clip_norm=0.1)
    first, rest = centring.parts(plan)
    assert first.steps + rest.steps == plan.steps
    with pytest.raises(InvalidInput, match=said):
        centring.parts(change(plan))


def test_records_are_centred_each_by_itself() -> None:
    features, _ = two_groups()
    model = centring.Centred(features.mean(dim=0), torch.nn.Identity())
    whole = model(features)
    assert torch.allclose(whole[3:4], model(features[3:4]), atol=1e-6)
    assert whole.norm(dim=1).tolist() == pytest.approx([WIDTH**0.5] * N, rel=1e-5)
    # What all had in common was most of their length before.
    assert whole.mean(dim=0).norm() < 0.2 * WIDTH**0.5 * features.mean(dim=0).norm()
    assert not [*model.parameters()]


def test_roots_keep_their_signs() -> None:
    values = torch.tensor([[4.0, -9.0, 0.0], [1.0, 1.0, 1.0]])
    assert torch.allclose(scaled(values, CENTRED)[0], torch.tensor([2.0, -3.0, 0.0]) / 13**0.5)
    assert scaled(values, CENTRED).norm(dim=1).tolist() == pytest.approx([1.0, 1.0])
