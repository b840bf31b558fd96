"""Hugging Face's Trainer by a plan: the same sums as brute force, and nothing told of people's records."""

import json
import stat
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, dropout

import privypurse as pp
from ledger_tools import EPSILONS, charged, new_ledger
from privypurse.huggingface.steps import Steps
from trainer_tools import (
    BATCH,
    PEOPLE,
    STEPS,
    Counting,
    adapted,
    bert,
    brute_force,
    flat,
    gpt2,
    planned,
    sentences,
    trainer,
    transformers,
)
from training_tools import NOBODY, Keeping, quiet, steps_on_disk

pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]


def everybody(clip_norm, steps=1):
    """Everybody is in every step."""
    return planned(method="uniform", batch_size=PEOPLE, clip_norm=clip_norm, steps=steps)


def lora():
    return adapted(gpt2())


LORA = pytest.param(lora, marks=pytest.mark.needs("peft"))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("make", [bert, gpt2, LORA])
def test_the_sum_is_that_of_single_records_by_the_models_own_loss(make, checkpointing, tmp_path, monkeypatch):
    """Not divided by the tokens of the batch, not doubled, not averaged: 12 records in parts of at most 5."""
    quiet(monkeypatch)
    model = make()
    data = sentences(model.get_base_model() if make is lora else model)
    kept = Keeping(model)
    kept.param_groups[0]["params"] = [value for value in model.parameters() if value.requires_grad]
    options = {"plan": everybody(100.0), "data": data, "optimizers": (kept, None)}
    options["gradient_checkpointing"] = checkpointing
    trainer(tmp_path, model, **options, per_device_train_batch_size=5).train()
    expected = flat(brute_force(model, data, 100.0)) / PEOPLE
    assert expected.norm() > 0.01
    assert (flat(kept.seen) - expected).norm() < 1e-4 * expected.norm()


def test_sums_are_wide_where_that_is_asked(tmp_path, monkeypatch):
    quiet(monkeypatch)
    model = gpt2()
    for wide, dtype in ((False, torch.float32), (True, torch.float64)):
        one = trainer(tmp_path / str(dtype), model, plan=everybody(1.0), data=sentences(model), wide_sums=wide)
        one.train()
        assert one._steps.optimizer._current_batch.run._dtype == dtype


def test_everybody_is_clipped_by_themselves(tmp_path, monkeypatch):
    quiet(monkeypatch)
    model = gpt2()
    data, kept = sentences(model), Keeping(model)
    plan = everybody(0.01)
    trainer(tmp_path, model, plan=plan, data=data, optimizers=(kept, None)).train()
    expected = flat(brute_force(model, data, 0.01)) / PEOPLE
    found = flat(kept.seen)
    assert found.norm() <= expected.norm() * 1.0001
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_a_step_that_draws_nobody_is_a_step(tmp_path, monkeypatch):
    quiet(monkeypatch, coins=NOBODY)
    model, counting = gpt2(), Counting()
    kept = Keeping(model)
    trainer(tmp_path, model, optimizers=(kept, None), callbacks=[counting]).train()
    assert counting.steps == list(range(1, STEPS + 1))
    assert not flat(kept.seen).any()


def test_it_trains_evaluates_predicts_and_tells_nothing_of_peoples_records(tmp_path):
    """What is told is counted against the names that may be: whatever else HF thinks of is seen here."""
    model, counting = bert(), Counting()
    before, others = flat(list(model.parameters())).clone(), sentences(model, 10, seed=2)
    made = trainer(
        tmp_path,
        model,
        eval_dataset=others,
        measured="public",
        callbacks=[counting],
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        compute_metrics=lambda seen: {"right": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    )
    done = made.train()
    assert isinstance(done, transformers.trainer_utils.TrainOutput)
    assert done.global_step == STEPS
    assert np.isnan(done.training_loss)
    assert done.metrics == {}
    assert (flat(list(model.parameters())) - before).norm() > 0.01
    assert steps_on_disk(tmp_path / "_private" / "steps") == STEPS
    public = {"learning_rate", "epsilon_at_most", "epoch", "step"}
    state = json.loads((tmp_path / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    for logs in (*counting.logs, *state["log_history"], *made.state.log_history):
        assert {name for name in logs if not name.startswith("eval_")} <= public
    assert [logs["epsilon_at_most"] for logs in counting.logs if "learning_rate" in logs] == [10.0] * (STEPS // 2)
    assert (state["total_flos"], state["num_input_tokens_seen"]) == (0, 0)
    assert not list(tmp_path.rglob("rng_state*"))
    assert not list(tmp_path.rglob("figures*"))
    measured = made.evaluate()
    told = [model.eval()(**{name: value[None] for name, value in record.items()}).loss.item() for record in others]
    assert measured["eval_loss"] == pytest.approx(np.mean(told), rel=1e-4)
    assert 0 <= measured["eval_right"] <= 1
    assert made.predict(others).predictions.shape == (10, 2)


def test_the_best_model_by_other_records_is_taken(tmp_path):
    """Stopping early and choosing by figures on others are free: the models are released."""
    model = bert()
    options = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False}
    stopping = transformers.EarlyStoppingCallback(early_stopping_patience=1)
    others = sentences(model, 6, seed=2)
    data = {"eval_dataset": others, "measured": "released"}
    made = trainer(tmp_path, model, **data, callbacks=[stopping], **options, **best)
    made.train()
    losses = [logs["eval_loss"] for logs in made.state.log_history if "eval_loss" in logs]
    assert made.state.best_metric == min(losses)
    assert made.evaluate()["eval_loss"] == pytest.approx(min(losses), rel=1e-5)


def test_without_a_public_cap_no_epsilon_is_told(tmp_path):
    counting = Counting()
    trainer(tmp_path, gpt2(), plan=planned(at_most=None, steps=2), callbacks=[counting]).train()
    assert any("learning_rate" in logs for logs in counting.logs)
    assert not any("epsilon_at_most" in logs for logs in counting.logs)


def test_internal_figures_go_into_a_local_file_alone(tmp_path, monkeypatch):
    quiet(monkeypatch)
    counting, model = Counting(), gpt2()
    data = sentences(model)
    losses = [model(**{name: value[None] for name, value in record.items()}).loss.item() for record in data]
    options = {"optimizers": (Keeping(model), None), "callbacks": [counting]}
    done = trainer(tmp_path, model, plan=everybody(1.0, steps=2), data=data, internal=True, **options).train()
    file = tmp_path / "_private" / "figures.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["internal"]["training_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert np.isnan(done.training_loss)
    assert not any("loss" in logs for logs in counting.logs)


def test_figures_on_other_people_are_for_the_caller_alone(tmp_path):
    """Nothing was said of evaluation data: logs, callbacks and checkpoints hear nothing, a local file does."""
    heard = []

    class Hearing(transformers.TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **more):
            heard.append(metrics)

        on_predict = on_evaluate

    counting, model = Counting(), bert()
    options = {"callbacks": [counting, Hearing()], "save_strategy": "steps", "save_steps": 2}
    options |= {"eval_dataset": sentences(model, 4, seed=2), "eval_strategy": "steps", "eval_steps": 2}
    with pytest.warns(pp.PrivyPurseWarning, match=r"not private for the people.* trainer\.evaluate\(\) gives it"):
        trainer(tmp_path, model, **options)
    made = trainer(tmp_path, model, **options, internal=True)
    made.train()
    state = json.loads((tmp_path / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    told = [*counting.logs, *state["log_history"]]
    assert len(told) == STEPS  # half of it each
    assert all(set(logs) <= {"learning_rate", "epsilon_at_most", "epoch", "step"} for logs in told)
    lines = [json.loads(line) for line in (tmp_path / "_private" / "figures.jsonl").read_text().splitlines()]
    found = [line["internal"]["validation"]["eval_loss"] for line in lines if "validation" in line["internal"]]
    assert len(found) == STEPS // 2
    assert made.evaluate()["eval_loss"] == pytest.approx(found[-1])
    assert made.predict(options["eval_dataset"]).metrics["test_loss"] == pytest.approx(found[-1])
    assert not heard


def test_the_generators_are_afterwards_what_they_were(tmp_path):
    """While a batch is out they are secret; who leaves early finds them as they were."""

    class Leaves(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            control.should_training_stop = True

    made = trainer(tmp_path, gpt2(), callbacks=[Leaves()])
    before = torch.random.get_rng_state()
    made.train()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_loss_over_the_whole_batch_is_refused(tmp_path):
    """The broken twin: what HF's models do with labels, divided by the labels of the batch that count."""

    def mean_over_all(output, labels):
        logits = output.logits[:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten()).expand(len(labels))

    with pytest.raises(pp.InvalidInput, match="loss"):
        trainer(tmp_path, gpt2(), loss_fn=mean_over_all).train()


def each_record(output, labels):
    return pp.losses.sequence_classification(output, labels)


MIXING = {
    "by what counts": lambda out, y: each_record(out, y) / max(1, (y == 1).sum().item()),
    "by how many there are": lambda out, y: each_record(out, y) / len(y),
    "by the shape": lambda out, y: each_record(out, y) * y.shape[0],
    "by whether anybody has it": lambda out, y: each_record(out, y) * (100.0 if (y == 1).any() else 1.0),
}
SOUND = {
    "smoothed labels": lambda out, y: cross_entropy(out.logits, y, reduction="none", label_smoothing=0.1),
    "class weights": lambda out, y: cross_entropy(out.logits, y, torch.tensor([1.0, 3.0]), reduction="none"),
    "a public number": lambda out, y: cross_entropy(out.logits, y, reduction="none") / BATCH,
    "dropout": lambda out, y: cross_entropy(dropout(out.logits, 0.1), y, reduction="none"),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_that_mixes_records_is_refused_as_in_train(name, tmp_path, monkeypatch):
    """What it goes by is a number that no tensor shows; the broken twin does not ask, and takes every step."""
    options = {"loss_fn": MIXING[name], "seed": 1}
    with pytest.raises(pp.InvalidInput, match="the loss of a record changes with the other records"):
        trainer(tmp_path / "asked", bert(), **options).train()
    assert steps_on_disk(tmp_path / "asked" / "_private" / "steps") < 2  # a batch of one record mixes nobody
    monkeypatch.setattr(Steps, "ask", lambda *of: None)
    assert trainer(tmp_path / "not asked", bert(), **options).train().global_step == STEPS


@pytest.mark.parametrize("name", SOUND)
def test_a_loss_that_keeps_records_apart_is_taken(name, tmp_path):
    made = trainer(tmp_path, bert(), loss_fn=SOUND[name], eval_dataset=sentences(bert(), 4, seed=2))
    assert made.train().global_step == STEPS
    assert made.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("tokens", ["mean", "sum"])
def test_a_loss_of_tokens_is_taken(tokens, tmp_path):
    model = gpt2()
    loss = partial(pp.losses.causal_language_model, tokens=tokens)
    assert trainer(tmp_path, model, loss_fn=loss).train().global_step == STEPS


def test_a_loss_that_mixes_later_on_is_found_by_chance(tmp_path, monkeypatch):
    """From the fifth step on: found where it is asked, which nobody can foresee."""

    class Mixes(transformers.TrainerCallback):
        now = False

        def on_step_end(self, args, state, control, **more):
            self.now = state.global_step == 4

    def train(folder, later):
        monkeypatch.setattr("privypurse.training.step_randomness._LATER", later)
        mixes, plan = Mixes(), everybody(1.0, steps=5)
        made = trainer(
            tmp_path / folder,
            bert(),
            plan=plan,
            loss_fn=lambda out, y: each_record(out, y) / (len(y) if mixes.now else 1),
            callbacks=[mixes],
        )
        made.train()
        return made.state.global_step

    assert train("not asked", 0.0) == 5
    with pytest.raises(pp.InvalidInput, match="the loss of a record"):
        train("asked", 1.0)
    assert steps_on_disk(tmp_path / "asked" / "_private" / "steps") == 4


def test_people_by_id_and_several_records_each(tmp_path, monkeypatch):
    """Three people with four records: clipped as one sum of gradients, whatever the parts."""
    quiet(monkeypatch)
    model, ids = gpt2(), np.repeat(["A", "B", "C"], 4)
    data, kept = sentences(model), Keeping(model)
    budgets = pp.Budgets(np.full(12, 4.0), delta=1e-4, person=ids)
    plan = pp.plan(budgets, "uniform", steps=1, batch_size=3, clip_norm=0.05, accountant="rdp")
    order = np.random.default_rng(0).permutation(12)
    shuffled = [data[place] for place in order]
    options = {"person": ids[order], "optimizers": (kept, None)}
    trainer(tmp_path, model, plan=plan, data=shuffled, **options).train()
    sums = [flat(brute_force(model, data[k : k + 4], 1e9)) for k in (0, 4, 8)]
    expected = sum(each * min(1.0, 0.05 / float(each.norm())) for each in sums) / 3
    assert (flat(kept.seen) - expected).norm() < 0.05 * expected.norm()


def test_under_a_ledger_everybody_is_charged_once_and_no_occupied_level_is_told(tmp_path):
    ledger, ids = new_ledger(tmp_path), np.array([f"C{k}" for k in range(PEOPLE)])
    ledger.join(ids, np.array(EPSILONS)[np.arange(PEOPLE) % 3])
    budgets = pp.Budgets(np.array(EPSILONS)[np.arange(PEOPLE) % 3], delta=1e-5, person=ids)
    options = {"steps": STEPS, "batch_size": BATCH, "noise_multiplier": 4.0, "accountant": "rdp"}
    plan = pp.plan(budgets, ledger=ledger, at_most=0.1, **options)
    counting = Counting()
    trainer(tmp_path / "out", gpt2(), plan=plan, person=ids, ledger=ledger, callbacks=[counting]).train()
    (run,) = ledger.runs()
    assert run.settled is not None
    assert (charged(ledger, ids) > 0).all()
    assert {logs["epsilon_at_most"] for logs in counting.logs if "learning_rate" in logs} == {0.1}


def test_short_floats(tmp_path):
    """Autocast in bfloat16, in training and in evaluation, as accelerate does it."""
    model = gpt2()
    seen = []
    model.lm_head.register_forward_hook(lambda *given: seen.append(given[-1].dtype))
    made = trainer(tmp_path, model, plan=planned(steps=2), eval_dataset=sentences(model, 4, seed=2), bf16=True)
    made.train()
    made.evaluate()
    assert set(seen) == {torch.bfloat16}
