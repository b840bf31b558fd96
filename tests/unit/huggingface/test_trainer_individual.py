"""What each person really spent, in Hugging Face's Trainer: everybody's own gradients, by the model's own loss."""

import numpy as np
import pytest

import privypurse as pp
from privypurse.huggingface.steps import Steps
from privypurse.training.individual.norm_passes import NormPasses
from trainer_tools import PEOPLE, STEPS, brute_force, flat, gpt2, planned, sentences, trainer, transformers

pytestmark = [
    pytest.mark.hf,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning"),
]
CLIP_NORM = 20.0


class Stops(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = state.global_step == 4


def norms(model, data):
    return np.array([float(flat(brute_force(model, [record], 1e6)).norm()) for record in data])


def test_everybody_is_charged_by_their_own_gradient(tmp_path):
    """Of a step that everybody is in: in μ² of Gaussian DP, by norms that are found one record at a time."""
    model = gpt2()
    data = sentences(model)
    own = norms(model, data)
    assert own.max() < CLIP_NORM
    assert own.max() > 1.1 * own.min()
    plan = planned(method="uniform", batch_size=PEOPLE, clip_norm=CLIP_NORM, steps=1)
    made = trainer(tmp_path, model, plan=plan, data=data, individual=pp.Individual(), per_device_train_batch_size=5)
    made.train()
    expected = (own / (plan.noise_multiplier * CLIP_NORM)) ** 2
    assert np.all(made.spending().meter >= expected * (1 - 1e-6))
    assert made.spending().meter == pytest.approx(expected, rel=1e-3)


def test_where_people_are_drawn_a_grid_norm_is_charged(tmp_path):
    model = gpt2()
    data, grid = sentences(model), pp.Individual(grid_size=200, headroom=1.0)
    own, plan = norms(model, data), planned(clip_norm=CLIP_NORM, steps=1)
    made = trainer(tmp_path, model, plan=plan, data=data, individual=grid)
    made.train()
    charged = made.spending().meter.grid_norm * CLIP_NORM / grid.grid_size
    assert np.all(charged >= own)
    assert np.all(charged <= own + 1.1 * CLIP_NORM / grid.grid_size)
    assert np.all(made.spending().epsilon("rdp") < plan.spent())


def test_a_run_that_is_resumed_charges_in_full_what_it_does_not_know(tmp_path):
    """Of 6 steps 3 are in the checkpoint, and one more is counted."""
    saved = {"save_strategy": "steps", "save_steps": 3, "plan": planned(clip_norm=CLIP_NORM)}
    each = pp.Individual(every=1, headroom=1.0)
    trainer(tmp_path, gpt2(), individual=each, callbacks=[Stops()], **saved).train()
    with pytest.raises(pp.InvalidInput, match="made with individual accounting"):
        trainer(tmp_path, gpt2(), **saved).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    made = trainer(tmp_path, gpt2(), individual=each, **saved)
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    spending = made.spending()
    assert (made.state.global_step, spending.lost) == (STEPS, 1)
    assert np.all(spending.epsilon("rdp") < saved["plan"].spent())


def test_norms_are_measured_as_the_model_trains(tmp_path, monkeypatch):
    """With dropout, though it was evaluated meanwhile; the twin of the steps leaves it as evaluation did."""
    modes, measured = [], NormPasses.norms

    def noted(self, *asked):
        modes.append(self.setup.recorder.model.training)
        return measured(self, *asked)

    monkeypatch.setattr(NormPasses, "norms", noted)
    options = {"individual": pp.Individual(every=1), "eval_strategy": "steps", "eval_steps": 1}
    options |= {"eval_dataset": sentences(gpt2(), 2, seed=2), "plan": planned(steps=2)}
    trainer(tmp_path / "one", gpt2(resid_pdrop=0.1), **options).train()
    assert modes == [True, True]

    def left_alone(self):
        self._batches = iter(self.loader)
        return ({"first part": each} for each in self._batches)

    monkeypatch.setattr(Steps, "__iter__", left_alone)
    trainer(tmp_path / "two", gpt2(resid_pdrop=0.1), **options).train()
    assert modes[2:] == [True, False]


def test_who_asks_too_early_or_did_not_ask_to_follow_it_is_told(tmp_path):
    made = trainer(tmp_path, gpt2(), plan=planned(steps=1))
    with pytest.raises(pp.InvalidInput, match=r"call train\(\) first"):
        made.spending()
    made.train()
    with pytest.raises(pp.InvalidInput, match="individual="):
        made.spending()
