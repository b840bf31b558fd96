"""Figures on people who are not charged leave Lightning by no way; on public or released records by all of them."""

# ruff: noqa: E402

import json
import warnings

import pytest

import components

components.require("lightning")

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

import privypurse as pp
from lightning_tools import Classifier, by_make_private, fit, planned, public, records, trainer
from privypurse.errors import PrivyPurseWarning
from privypurse.lightning import PrivateDataModule
from training_tools import same

torch.set_num_threads(1)
pytestmark = [pytest.mark.lightning, pytest.mark.needs("lightning")]
FIGURE = 0.7654321
SHOWN = "0.765"


class Loud(Classifier):
    """Tells one figure in every way that Lightning has for it."""

    def validation_step(self, batch, batch_idx):
        self.log("val_figure", FIGURE, prog_bar=True, on_step=True, on_epoch=True)
        self.log_dict({"again": FIGURE}, logger=True)
        for logger in self.loggers:
            logger.log_metrics({"by hand": FIGURE})
        return {"figure": FIGURE}

    def on_validation_epoch_end(self):
        self.log("at the end", FIGURE, prog_bar=True)

    test_step = validation_step


class Hearing(L.Callback):
    """Keeps whatever a callback could find."""

    def __init__(self):
        self.heard = []

    def listen(self, trainer, *of):
        shown = (trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics)
        self.heard += [repr([{name: float(value) for name, value in some.items()} for some in shown])]

    def on_validation_batch_end(self, trainer, module, outputs, batch, *of):
        self.listen(trainer)
        self.heard.append(str(outputs if isinstance(outputs, dict) else type(outputs).__name__))

    on_validation_epoch_end = on_validation_end = on_train_batch_end = on_train_epoch_end = on_fit_end = listen


class Bar(TQDMProgressBar):
    def __init__(self):
        super().__init__()
        self.shown = []

    def get_metrics(self, trainer, module):
        self.shown.append(str(found := super().get_metrics(trainer, module)))
        return found


def told(place, capfd, **options):
    """A fit and a validation; gives all that was told, to whom, and the trainer."""
    hearing, bar, loggers = Hearing(), Bar(), [CSVLogger(place, "csv", "1"), CSVLogger(place, "csv", "2")]
    kept = ModelCheckpoint(place / "kept", "{step}-{val_figure:.5f}", save_top_k=-1, every_n_train_steps=2)
    used = trainer(
        val_check_interval=2,
        callbacks=[hearing, bar, kept],
        logger=loggers,
        log_every_n_steps=1,
        enable_checkpointing=True,
        enable_progress_bar=True,
    )
    module, plan = Loud(), planned(steps=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        data = PrivateDataModule(records(), plan, seed=3, val_dataloaders=public(), **options)
        used.fit(module, datamodule=data)
        found = used.validate(module, datamodule=data)
    assert same(module.net, by_make_private(plan))
    files = [path for path in place.rglob("*") if path.is_file()]
    saved = [path for path in files if path.suffix == ".ckpt"]
    out = capfd.readouterr()
    return found, {
        "callbacks": " ".join(hearing.heard),
        "bar": " ".join(bar.shown),
        "loggers": " ".join(path.read_text("utf-8") for path in files if path.suffix == ".csv"),
        "names of checkpoints": " ".join(path.name for path in saved),
        "terminal": out.out + out.err,
    }


def test_nothing_is_told_of_people_who_are_not_charged(tmp_path, capfd):
    """But to who asks for it, and in the file that is for nobody else."""
    run = tmp_path / "run"
    found, everywhere = told(tmp_path / "all", capfd, folder=run, internal=True)
    assert {where for where, what in everywhere.items() if SHOWN in what} == set()
    assert "Hidden" in everywhere["callbacks"]
    assert found == [{name: pytest.approx(FIGURE) for name in found[0]}]
    assert {"again", "at the end", "val_figure_epoch"} <= found[0].keys()
    lines = [json.loads(line) for line in (run / "figures.jsonl").read_text("utf-8").splitlines()]
    measured = [line for line in lines if "validation" in line["internal"]]
    assert [line["step"] for line in measured] == [2, 4]
    assert measured[0]["internal"] == {"validation": found[0], "measured": "people"}


@pytest.mark.parametrize("measured", ["public", "released"])
def test_public_figures_are_told_everywhere(measured, tmp_path, capfd):
    """The twin: what shows in each place if it is not hidden, so that the test above looks where it should."""
    _, everywhere = told(tmp_path, capfd, measured=measured)
    assert {where for where, what in everywhere.items() if SHOWN not in what} == set()


def test_that_figures_are_hidden_is_said_once():
    data = PrivateDataModule(records(), planned(steps=4), val_dataloaders=public(), seed=3)
    with pytest.warns(PrivyPurseWarning) as said:
        trainer(val_check_interval=2).fit(Loud(), datamodule=data)
    (words,) = [str(each.message) for each in said if "not private for the people" in str(each.message)]
    assert 'measured="public"' in words
    assert "trainer.validate(…, datamodule=…) gives it to you" in words


class Plateau(Classifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


@pytest.mark.parametrize(
    ("kind", "callbacks", "what"),
    [
        (Classifier, [EarlyStopping("val_loss")], "monitor of EarlyStopping is 'val_loss'"),
        (Classifier, [ModelCheckpoint(monitor="val_loss")], "monitor of ModelCheckpoint is 'val_loss'"),
        (Plateau, [], "monitor of ReduceLROnPlateau is 'val_loss'"),
    ],
)
def test_nothing_is_chosen_by_people_who_are_not_charged(kind, callbacks, what, tmp_path):
    """A choice by hidden figures would tell them; by public ones it is made."""
    options = {"enable_checkpointing": True, "default_root_dir": tmp_path, "callbacks": callbacks}
    with pytest.raises(pp.InvalidInput, match=what):
        fit(kind(), planned(steps=2), trainer(**options), val_dataloaders=public())
    fit(kind(), planned(steps=2), trainer(**options), val_dataloaders=public(), measured="public")


def test_no_figure_goes_into_the_model():
    class Writes(Classifier):
        def __init__(self):
            super().__init__()
            self.register_buffer("best", torch.zeros(()))

        def validation_step(self, batch, batch_idx):
            self.best.fill_(FIGURE)

    with pytest.raises(pp.InvalidInput, match="validation wrote into best"):
        fit(Writes(), planned(steps=2), val_dataloaders=public())
    fit(Writes(), planned(steps=2), val_dataloaders=public(), measured="public")


def test_tests_are_asked_the_same():
    class Tested(PrivateDataModule):
        def test_dataloader(self):
            return self.tested

    data, mine = Tested(records(), planned(), seed=3), trainer()
    data.tested = public()
    (found,) = mine.test(Loud(), datamodule=data)
    assert found["again"] == pytest.approx(FIGURE)
    assert not mine.callback_metrics
    data.tested = DataLoader(data.private_fit._dataset)
    with pytest.raises(pp.InvalidInput, match="this is the training data"):
        trainer().test(Loud(), datamodule=data)


@pytest.mark.parametrize(("measured", "what"), [("charged", "for a function that asks"), ("mine", "'public', 'rel")])
def test_other_answers_are_refused(measured, what):
    with pytest.raises(pp.InvalidInput, match=what):
        PrivateDataModule(records(), planned(), measured=measured)
