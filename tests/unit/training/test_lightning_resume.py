"""Lightning runs that were killed go on, and never take more steps than the plan has."""

# ruff: noqa: E402
import pytest

import components

components.require("lightning")

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import privypurse as pp
from lightning_tools import Classifier, by_make_private, fit, planned, public, records, run_script, trainer
from privypurse.lightning import PrivateDataModule
from training_tools import same, steps_on_disk

torch.set_num_threads(1)
pytestmark = [pytest.mark.lightning, pytest.mark.needs("lightning")]

STEPS = 12


def keeping(folder, **options):
    kept = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1, save_last=True)
    return trainer(callbacks=[kept], enable_checkpointing=True, **options)


class Dies(Classifier):
    """In the middle of the seventh step."""

    def on_before_optimizer_step(self, optimizer):
        if self.global_step == 6:
            raise KeyError("power failure")


def test_a_seeded_run_goes_on_to_the_same_bits(tmp_path):
    plan, module = planned(steps=STEPS), Classifier()
    with pytest.raises(KeyError, match="power failure"):
        fit(Dies(), plan, keeping(tmp_path), val_dataloaders=public())
    used = fit(module, plan, keeping(tmp_path), ckpt_path=str(tmp_path / "last.ckpt"), val_dataloaders=public())
    assert used.global_step == STEPS
    assert same(module.net, by_make_private(plan))


SCRIPT = """
import os, signal, sys
from lightning_tools import *
from lightning.pytorch.callbacks import ModelCheckpoint

class Counting(torch.optim.SGD):
    '''Writes down every gradient that it is given, before the step.'''

    def step(self, closure=None):
        with open("released", "a") as file:
            file.write("one\\n")
            file.flush()
            os.fsync(file.fileno())
        super().step(closure)

class Module(Classifier):
    def configure_optimizers(self):
        return Counting(self.parameters(), lr=0.5)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if sys.argv[1] == "kill" and self.global_step == 7:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    how, folder, path, seed = sys.argv[1:]
    kept = ModelCheckpoint("kept", every_n_train_steps=2, save_top_k=-1, save_last=True)
    used = trainer(callbacks=[kept], enable_checkpointing=True, max_epochs=-1, max_steps=40)
    fit(Module(), planned(steps=40), used, seed=int(seed) or None, folder=folder, ckpt_path=path or None)
"""


PLANNED = 40
"""Of the script: when it is killed at the seventh, at most 14 are counted ahead, and some are left."""


def released(folder):
    return (folder / "released").read_text().count("one")


@pytest.mark.slow
def test_a_killed_run_never_takes_more_steps_than_the_plan_has(tmp_path):
    assert run_script(SCRIPT, tmp_path, "kill", "run", "", "0").returncode == -9
    assert released(tmp_path) == 7
    assert steps_on_disk(tmp_path / "run" / "steps") >= 7
    done = run_script(SCRIPT, tmp_path, "go on", "run", "kept/last.ckpt", "0")
    assert done.returncode == 0, done.stderr
    assert 7 < released(tmp_path) <= PLANNED
    assert steps_on_disk(tmp_path / "run" / "steps") == PLANNED
    again = run_script(SCRIPT, tmp_path, "go on", "run", "kept/epoch=0-step=2.ckpt", "0")  # from an older one
    assert "PlanExhausted" in again.stderr
    assert released(tmp_path) <= PLANNED


@pytest.mark.slow
def test_the_broken_twin_takes_more(tmp_path):
    """A seeded run goes back to its checkpoint: its steps repeat the same numbers, and it is private to nobody."""
    run_script(SCRIPT, tmp_path, "kill", "run", "", "5")
    run_script(SCRIPT, tmp_path, "go on", "run", "kept/epoch=0-step=2.ckpt", "5")
    assert released(tmp_path) == 7 + 38 > PLANNED


def test_a_folder_that_knows_nothing_of_the_run_is_refused(tmp_path):
    plan = planned(steps=STEPS)
    with pytest.raises(KeyError):
        fit(Dies(), plan, keeping(tmp_path), seed=None, folder=tmp_path / "run")
    path = str(tmp_path / "last.ckpt")
    with pytest.raises(pp.InvalidInput, match=r"the checkpoint is of 6 steps, but .*other counts 0"):
        fit(Classifier(), plan, trainer(), seed=None, folder=tmp_path / "other", ckpt_path=path)
    assert fit(Classifier(), plan, seed=None, folder=tmp_path / "run", ckpt_path=path).global_step == STEPS


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_steps_that_are_lost_are_told(tmp_path):
    plan = planned(steps=STEPS)
    with pytest.raises(KeyError):
        fit(Dies(), plan, keeping(tmp_path), seed=None, folder=tmp_path / "run")
    data = PrivateDataModule(records(), plan, folder=tmp_path / "run")
    with pytest.warns(pp.PrivyPurseWarning, match=r"the checkpoint is of 4 steps and .* counts [67].* are lost"):
        trainer().fit(Classifier(), datamodule=data, ckpt_path=str(tmp_path / "epoch=0-step=4.ckpt"))


def test_without_a_folder_nothing_goes_on(tmp_path):
    plan = planned(steps=STEPS)
    with pytest.raises(KeyError):
        fit(Dies(), plan, keeping(tmp_path), seed=None)
    with pytest.raises(pp.InvalidInput, match="steps that were taken since then"):
        fit(Classifier(), plan, trainer(), seed=None, ckpt_path=str(tmp_path / "last.ckpt"))


def test_a_checkpoint_of_a_plain_run_is_refused(tmp_path):
    used = keeping(tmp_path)
    used.fit(Classifier(), train_dataloaders=torch.utils.data.DataLoader(public().dataset, 5))
    with pytest.raises(pp.InvalidInput, match="ordinary optimizer"):
        fit(Classifier(), planned(), trainer(), ckpt_path=str(tmp_path / "last.ckpt"))


def test_fits_one_after_another_share_the_count(tmp_path):
    """With a folder the second goes on where the first was stopped; a third has nothing left."""
    plan, module = planned(steps=4), Classifier()
    assert fit(module, plan, trainer(max_steps=3), seed=None, folder=tmp_path).global_step == 3
    assert fit(module, plan, trainer(max_epochs=-1, max_steps=4), seed=None, folder=tmp_path).global_step == 1
    with pytest.raises(pp.PlanExhausted):
        fit(module, plan, trainer(), seed=None, folder=tmp_path)


def test_an_interrupted_run_lets_go_of_its_folder(tmp_path):
    plan = planned(steps=STEPS)
    with pytest.raises(KeyError):
        fit(Dies(), plan, trainer(), seed=None, folder=tmp_path)
    assert steps_on_disk(tmp_path / "steps") == 6  # exactly: what was reserved ahead is given back
    module = Classifier()
    assert fit(module, plan, trainer(), seed=None, folder=tmp_path).global_step == 6


def test_a_model_that_begins_where_steps_are_counted_is_told_so(tmp_path):
    """The steps that are left go to it; who forgot ckpt_path hears of it, and with none left nothing begins."""
    plan = planned(steps=4)

    def begun(**how):
        data = PrivateDataModule(records(), plan, folder=tmp_path)
        used = trainer(**how)
        used.fit(Classifier(), datamodule=data)
        return used.global_step

    assert begun(max_epochs=-1, max_steps=3) == 3
    with pytest.warns(pp.PrivyPurseWarning, match=r"3 steps .* 1 are left for this model.*ckpt_path"):
        assert begun() == 1
    with pytest.raises(pp.PlanExhausted, match=r"all 4 steps .* none is left.*another folder="):
        begun()
