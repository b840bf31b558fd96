"""Runs of Hugging Face's Trainer that were killed: a counted step stays counted, and the model goes on."""

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

import privypurse as pp
from trainer_tools import STEPS, Counting, adapted, brute_force, flat, gpt2, planned, sentences, trainer, transformers
from training_tools import count_on_disk, steps_on_disk

pytestmark = [pytest.mark.hf, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]
KILLED_AT = 4


class Killed(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


class Stops(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        control.should_training_stop = state.global_step == KILLED_AT


def begun(folder, callback, save_steps=3):
    trainer(
        folder, gpt2(), plan=planned(), callbacks=[callback], save_strategy="steps", save_steps=save_steps
    ).train()


def goes_on(folder, resume=True, **options):
    counting = Counting()
    made = trainer(folder, gpt2(), callbacks=[counting], save_strategy="steps", save_steps=3, **options)
    made.train(resume_from_checkpoint=resume)
    return made, counting


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder that a killed process left: a checkpoint of 3 steps, and at least 4 counted."""
    folder = tmp_path_factory.mktemp("killed")
    child = multiprocessing.get_context("fork").Process(target=begun, args=(folder, Killed()))
    child.start()
    child.join(timeout=900)
    assert child.exitcode == -signal.SIGKILL
    assert steps_on_disk(folder / "_private" / "steps") >= KILLED_AT
    return folder


def test_killed_and_resumed(killed, tmp_path):
    from safetensors.torch import load_file

    folder = shutil.copytree(killed, tmp_path / "run")
    (folder / "checkpoint-5").mkdir()  # one that was being written when the process was killed: weights come first
    shutil.copy(folder / "checkpoint-3" / "model.safetensors", folder / "checkpoint-5")
    count_on_disk(folder / "_private" / "steps", KILLED_AT)  # at least: some may be counted ahead
    with pytest.warns(pp.PrivyPurseWarning, match=r"is of 3 steps and .* counts 4.*lost"):
        made, counting = goes_on(folder)
    assert set(made.lr_scheduler.get_last_lr()) == {0.0}  # as after a run that nobody killed
    saved = load_file(folder / "checkpoint-3" / "model.safetensors")
    assert all(value.equal(saved[name]) for name, value in counting.began.items())
    assert counting.steps == list(range(KILLED_AT + 1, STEPS + 1))  # released in all: the plan's, and none twice
    assert steps_on_disk(folder / "_private" / "steps") == made.state.global_step == STEPS
    assert not any(value.equal(counting.began[name]) for name, value in made.model.named_parameters())
    assert (folder / f"checkpoint-{STEPS}" / "trainer_state.json").exists()
    again, nothing = goes_on(folder)  # all is done: the model of the last checkpoint, and no step
    assert nothing.steps == []
    assert torch.equal(flat(list(again.model.parameters())), flat(list(made.model.parameters())))
    with pytest.raises(pp.PlanExhausted, match="another output_dir"):
        goes_on(folder, resume=None)


def test_what_was_counted_and_lost_is_not_taken_again(killed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "run")
    count_on_disk(folder / "_private" / "steps", STEPS)
    with pytest.warns(pp.PrivyPurseWarning, match=rf"is of 3 steps and .* counts {STEPS}.*lost"):
        _, counting = goes_on(folder)
    assert counting.steps == []


def test_without_a_checkpoint_only_what_is_left_is_taken(killed, tmp_path):
    """Begun anew in the same folder, the count goes on."""
    folder = shutil.copytree(killed, tmp_path / "run")
    count_on_disk(folder / "_private" / "steps", KILLED_AT)
    with pytest.warns(pp.PrivyPurseWarning, match="4 steps of this plan are counted"):
        _, counting = goes_on(folder, resume=None)
    assert counting.steps == [5, 6]
    with pytest.raises(pp.PlanExhausted, match=r"all 6 steps .* none is left.*another output_dir"):
        goes_on(folder, resume=None)


@pytest.mark.parametrize("weights_alone", [True, False])
def test_a_checkpoint_beside_a_journal_that_counts_fewer_is_refused(killed, tmp_path, weights_alone):
    """The broken twin of a folder: its steps are counted elsewhere, and the optimizer's state is no witness."""
    folder = shutil.copytree(killed, tmp_path / "run")
    shutil.rmtree(folder / "_private")
    if weights_alone:
        (folder / "checkpoint-3" / "optimizer.pt").unlink()
    with pytest.raises(pp.InvalidInput, match=r"of 3 steps, but .* counts 0"):
        goes_on(folder)


def test_another_plan_is_refused(killed, tmp_path):
    folder = shutil.copytree(killed, tmp_path / "run")
    with pytest.raises(pp.InvalidInput, match="another plan"):
        goes_on(folder, plan=planned(steps=STEPS + 2))


def test_left_early_by_a_callback_and_gone_on_in_the_same_trainer(tmp_path):
    counting = Counting()
    model = gpt2()
    options = {"callbacks": [Stops(), counting], "save_strategy": "steps", "save_steps": 2}
    made = trainer(tmp_path, model, **options)
    assert made.train().global_step == KILLED_AT
    made.pop_callback(Stops)
    assert made.train(resume_from_checkpoint=True).global_step == STEPS
    assert counting.steps == list(range(1, STEPS + 1))


def test_a_seeded_run_that_was_left_is_the_one_that_was_not(tmp_path):
    """Its draws and its noise follow from seed and step; the optimizer's and the scheduler's state are saved."""
    options = {"seed": 1, "save_strategy": "steps", "save_steps": 2, "eval_dataset": sentences(gpt2(), 4, seed=2)}
    whole = trainer(tmp_path / "whole", gpt2(), **options)
    whole.train()
    trainer(tmp_path / "parts", gpt2(), callbacks=[Stops()], **options).train()
    parts = trainer(tmp_path / "parts", gpt2(), **options, eval_strategy="steps", eval_steps=1)
    parts.train(resume_from_checkpoint=True)
    assert torch.equal(flat(list(whole.model.parameters())), flat(list(parts.model.parameters())))


@pytest.mark.parametrize("kind", ["reduce_lr_on_plateau", "greedy"])
def test_a_learning_rate_by_figures_goes_on_where_it_was(kind, tmp_path):
    """It has no number of steps to catch up with, and its own step asks for a figure."""
    if kind not in {each.value for each in transformers.SchedulerType}:
        pytest.skip(f"this release of transformers has no {kind}")
    options = {"lr_scheduler_type": kind, "eval_dataset": sentences(gpt2(), 4, seed=2), "measured": "public"}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 3}
    trainer(tmp_path, gpt2(), callbacks=[Stops()], **options).train()
    shutil.rmtree(tmp_path / f"checkpoint-{KILLED_AT}", ignore_errors=True)
    made = trainer(tmp_path, gpt2(), **options)
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == STEPS


@pytest.mark.needs("peft")
def test_adapters_go_on_where_they_were(tmp_path):
    from safetensors.torch import load_file

    def made(*callbacks):
        model = adapted(gpt2(resid_pdrop=0.1))
        options = {"callbacks": [*callbacks], "save_strategy": "steps", "save_steps": 2}
        return trainer(tmp_path, model, data=sentences(model.get_base_model()), **options)

    made(Stops()).train()
    saved = load_file(tmp_path / f"checkpoint-{KILLED_AT}" / "adapter_model.safetensors")
    counting = Counting()
    again = made(counting)
    again.train(resume_from_checkpoint=True)
    assert counting.steps == [5, 6]
    assert len(saved) == 4
    for name, value in again.model.named_parameters():
        if value.requires_grad:
            before = saved[name.replace(".default", "")]
            assert counting.began[name].equal(before)
            assert not value.equal(before)


TWO = """
import sys
import numpy as np, torch, torch.distributed as dist
from pathlib import Path
from training_tools import Keeping, Quiet, EVERYBODY
from trainer_tools import PEOPLE, flat, gpt2, planned, sentences, trainer, transformers
import privypurse.training.setup, privypurse.training.grid_noise
privypurse.training.setup.randomness = lambda seed: Quiet(EVERYBODY)
privypurse.training.grid_noise.FINENESS = 46
folder, model = Path(sys.argv[1]), gpt2()
kept = Keeping(model)
plan = planned(method="uniform", batch_size=PEOPLE, clip_norm=100.0, steps=2)
made = trainer(folder / "out", model, plan=plan, optimizers=(kept, None), eval_dataset=sentences(model, 5, seed=2),
               ddp_backend="gloo", save_strategy="steps", save_steps=1)
made.train()
assert dist.get_world_size() == 2
np.save(folder / f"{dist.get_rank()}.npy", flat(kept.seen[: len(kept.seen) // 2]).numpy())
made.evaluate()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_add_up_to_one_sum(tmp_path):
    """Under torchrun each has its share of the people; accelerate neither averages nor hands anybody out twice."""
    script = tmp_path / "two.py"
    script.write_text(TWO)
    with socket.socket() as free:  # --standalone has been seen to wait for itself at port 0
        free.bind(("127.0.0.1", 0))
        where = ["--master-addr=127.0.0.1", f"--master-port={free.getsockname()[1]}"]
    command = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node=2", str(script)]
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    done = subprocess.run([*command, str(tmp_path)], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    model = gpt2()
    expected = flat(brute_force(model, sentences(model), 100.0)) / 12
    for rank in range(2):
        found = torch.as_tensor(np.load(tmp_path / f"{rank}.npy"))
        assert (found - expected).norm() < 1e-4 * expected.norm()
