"""Lightning's Trainer by a plan: the same steps as `make_private` to the bit, and what is told of them."""

# ruff: noqa: E402

import json
import stat
import warnings

import pytest

import components

components.require("lightning")

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Subset
from torchmetrics.classification import MulticlassAccuracy

import privypurse as pp
from ledger_tools import charged, new_ledger, step_cost
from lightning_tools import Classifier, by_make_private, fit, network, planned, public, records, trainer
from privypurse.errors import PrivyPurseWarning
from privypurse.lightning import PrivateDataModule
from privypurse.training.make_private import PrivateLoader
from training_tools import LOSS, NOBODY, quiet, same

torch.set_num_threads(1)
pytestmark = [pytest.mark.lightning, pytest.mark.needs("lightning")]


class PerRecord(Classifier):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self.net(x), y, reduction="none"), "logits": self.net}


class OnlyTheBatch(Classifier):
    def training_step(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)


class Parts(L.LightningModule):
    """As many begin: two parts, put together in training_step."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.two(self.one(x)), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Put(Parts):
    def forward(self, x):
        return self.two(self.one(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)


@pytest.mark.parametrize("kind", [Classifier, PerRecord, OnlyTheBatch])
@pytest.mark.parametrize("physical", [None, 5])
def test_steps_are_those_of_make_private_to_the_bit(kind, physical):
    module, plan, execution = kind(), planned(), pp.Execution(max_physical_batch=physical)
    used = fit(module, plan, execution=execution)
    assert used.global_step == plan.steps
    assert same(module.net, by_make_private(plan, execution=execution))
    assert not same(module.net, network())
    assert not {"forward", "training_step", "log"} & vars(module).keys()  # as it was
    assert not same(module.net, by_make_private(plan, execution=execution, seed=4))


def test_layers_in_several_parts_go_through_forward():
    with pytest.raises(pp.InvalidInput, match=r"goes into forward\(\)"):
        fit(Parts(), planned())
    module, plan = Put(), planned()
    bare = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    bare.load_state_dict({name.replace("one", "0").replace("two", "1"): v for name, v in module.state_dict().items()})
    fit(module, plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        optimizer = torch.optim.SGD(bare.parameters(), lr=0.5)
        pp.train(bare, optimizer, records(), plan, lambda o, y: F.cross_entropy(o, y, reduction="none"), seed=3)
    assert all(map(torch.equal, module.parameters(), bare.parameters()))


def test_a_step_that_draws_nobody_is_a_step(monkeypatch):
    quiet(monkeypatch, NOBODY)
    module, plan = Classifier(), planned(steps=4)
    assert fit(module, plan, seed=None).global_step == 4
    assert same(module.net, network())  # without noise and without anybody nothing moves


def test_validation_and_callbacks_disturb_nothing(tmp_path):
    class Scheduled(Classifier):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module, plan, rates = Scheduled(), planned(), LearningRateMonitor("step")
    kept = ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=-1)
    stops = EarlyStopping("val_loss", patience=100)
    logger = CSVLogger(tmp_path, "logs", "one")
    used = trainer(
        val_check_interval=2,
        callbacks=[kept, rates, stops],
        logger=logger,
        enable_checkpointing=True,
        log_every_n_steps=1,
    )
    fit(module, plan, used, val_dataloaders=public(), measured="public")
    assert same(module.net, by_make_private(plan))
    lines = (tmp_path / "logs" / "one" / "metrics.csv").read_text("utf-8").splitlines()
    assert {"val_loss", "lr-SGD", "step"} <= set(lines[0].split(","))
    assert len(kept.best_k_models) == 3
    assert stops.best_score == min(kept.best_k_models.values())


def test_early_stopping_ends_by_figures_on_other_people():
    class Worse(Classifier):
        def on_validation_epoch_end(self):
            self.log("worse", float(self.global_step))

    used = trainer(val_check_interval=2, callbacks=[EarlyStopping("worse", patience=2)])
    told = {"val_dataloaders": public(), "measured": "released"}
    assert fit(Worse(), planned(steps=12), used, **told).global_step == 6


def test_epochs_are_parts_of_the_run():
    class Epochs(Classifier):
        ended = 0

        def on_train_epoch_end(self):
            self.ended += 1

    module, plan = Epochs(), planned(steps=6)
    assert fit(module, plan, trainer(max_epochs=3, limit_train_batches=2)).global_step == 6
    assert module.ended == 3
    assert same(module.net, by_make_private(plan))


def test_what_a_callback_gets_tells_nothing_of_the_records():
    """The broken twin, a plain fit, gives both away."""

    class Curious(L.Callback):
        def __init__(self):
            self.seen, self.losses, self.gradients = [], [], []

        def on_before_backward(self, trainer, module, loss):
            self.losses.append(float(loss.detach()))

        def on_before_optimizer_step(self, trainer, module, optimizer):
            self.gradients.append(module.net[0].weight.grad)

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.seen += [outputs, batch]
            self.losses.append(float(outputs["loss"]))

    curious, plan = Curious(), planned(steps=3)
    fit(PerRecord(), plan, trainer(callbacks=[curious]), execution=pp.Execution(max_physical_batch=5))
    assert len(curious.losses) == 2 * plan.steps  # once a step, in however many parts it went
    assert all(loss != loss for loss in curious.losses)
    assert curious.gradients == [None] * plan.steps
    assert all(seen == {"loss": seen["loss"]} for seen in curious.seen[::2])
    for step in curious.seen[1::2]:
        assert vars(step) == {}
        with pytest.raises(AttributeError, match="rule 6"):
            _ = step.shape
    plainly = Curious()
    trainer(callbacks=[plainly]).fit(Classifier(), DataLoader(records(), 20))
    assert not any(loss != loss for loss in plainly.losses)
    assert plainly.gradients[0] is not None


class Talkative(Classifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"twice": 2 * loss.item()})
        return loss

    def on_train_epoch_end(self):
        self.log("later", 1.0)


class Kept(Logger):
    """What any logger would get."""

    name, version = "kept", 0

    def __init__(self):
        super().__init__()
        self.told = {}

    def log_metrics(self, metrics, step=None):
        self.told |= metrics

    def log_hyperparams(self, *of):
        pass


def test_what_is_logged_while_training_goes_nowhere_and_that_is_said_once():
    logger = Kept()
    used = trainer(logger=logger, log_every_n_steps=1)
    data = PrivateDataModule(records(), planned(), val_dataloaders=public(), measured="public")
    with pytest.warns(PrivyPurseWarning, match="'train_loss' was logged in training_step") as told:
        used.fit(Talkative(), datamodule=data)
    assert sum("was logged" in str(each.message) for each in told) == 1
    assert set(used.callback_metrics) == {"val_loss"}
    assert set(logger.told) == {"val_loss", "epoch"}
    plainly = Kept()
    trainer(logger=plainly, log_every_n_steps=1).fit(Talkative(), DataLoader(records(), 20))
    assert {"train_loss", "twice", "later"} <= set(plainly.told)


def test_nothing_may_be_decided_by_the_training_loss():
    with pytest.raises(pp.InvalidInput, match="monitor of EarlyStopping is 'train_loss'"):
        fit(Talkative(), planned(), trainer(callbacks=[EarlyStopping("train_loss")]))
    with pytest.raises(RuntimeError, match="`train_loss` which is not available"):
        fit(Talkative(), planned(), trainer(callbacks=[EarlyStopping("train_loss")]), measured="public")


def test_metrics_of_the_records_are_counted_for_nobody_else(tmp_path):
    """Records that come as dictionaries, and a metric in the usual way."""

    class Measured(Classifier):
        def __init__(self):
            super().__init__()
            self.accuracy = MulticlassAccuracy(3)

        def training_step(self, batch, batch_idx):
            output = self.net(batch["x"])
            self.log("accuracy", self.accuracy(output, batch["y"]), on_epoch=True)
            return F.cross_entropy(output, batch["y"])

        def on_train_epoch_end(self):
            self.log("at the end", self.accuracy.compute())

    module, plan, data = Measured(), planned(), [{"x": x, "y": y} for x, y in records()]
    used = fit(module, plan, data=data, folder=tmp_path, internal=True)
    assert same(module.net, by_make_private(plan))
    assert not used.callback_metrics
    lines = [json.loads(line) for line in (tmp_path / "figures.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines if "accuracy" in line["internal"]] == list(range(1, 7))
    assert lines[-1]["internal"].keys() == {"at the end"}
    assert 0 < lines[-1]["internal"]["at the end"] < 1


def test_internal_figures_go_into_a_local_file_alone(tmp_path):
    logger, plan = Kept(), planned(steps=3)
    fit(Talkative(), plan, trainer(logger=logger, log_every_n_steps=1), folder=tmp_path / "run", internal=True)
    file = tmp_path / "run" / "figures.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines if "train_loss" in line["internal"]] == [1, 2, 3]
    losses, logged, twice = (
        [line["internal"][name] for line in lines if name in line["internal"]]
        for name in ("loss", "train_loss", "twice")
    )
    assert losses == logged
    assert twice == pytest.approx([2 * loss for loss in losses], rel=1e-5)
    assert not {"train_loss", "twice", "loss", "later"} & logger.told.keys()
    with pytest.raises(pp.InvalidInput, match="give folder="):
        PrivateDataModule(records(), plan, internal=True)


def test_checkpoints_hold_no_count_of_records(tmp_path):
    """Not by the number of parts that steps were cut into either."""
    whole = []
    for physical in (None, 2):
        module, used = Classifier(), trainer()
        fit(module, planned(steps=3), used, execution=pp.Execution(max_physical_batch=physical))
        used.save_checkpoint(tmp_path / "one.ckpt")
        whole.append(torch.load(tmp_path / "one.ckpt", weights_only=True))
    assert whole[0]["loops"] == whole[1]["loops"]
    assert whole[0]["optimizer_states"][0]["private"].keys() == {"run", "steps_taken", "plan", "seed", "individual"}


def test_members_are_no_validation_data():
    data, everybody = records(), records(62)
    members, others = Subset(everybody, range(60)), Subset(Subset(everybody, range(50, 62)), [10, 11])
    for trained, looked_at in ((data, data), (data, Subset(Subset(data, [1, 2]), [0])), (members, everybody)):
        with pytest.raises(pp.InvalidInput, match="training data: nobody pays"):
            fit(Classifier(), planned(), data=trained, val_dataloaders=DataLoader(looked_at), measured="public")
    with pytest.raises(pp.InvalidInput, match="training data: nobody pays"):
        fit(Classifier(), planned(), data=members, val_dataloaders=DataLoader(Subset(others.dataset, [9, 10])))
    fit(Classifier(), planned(steps=1), data=members, val_dataloaders=DataLoader(others))


def test_a_batch_may_be_changed_on_its_way():
    """Lightning's own hooks for batches see records, not steps."""

    class Moved(Classifier):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return [2 * batch[0], batch[1]]

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [batch[0] / 2, batch[1]]

    module, plan = Moved(), planned()
    fit(module, plan, val_dataloaders=public())
    assert same(module.net, by_make_private(plan))


@pytest.mark.parametrize("physical", [None, 5])
def test_gradient_checkpointing_changes_nothing(physical):
    again = []

    class Again(Classifier):
        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

        def training_step(self, batch, batch_idx):
            before = len(again)
            loss = super().training_step(batch, batch_idx)
            del again[before:]
            return loss

    module, plan, execution = Again(), planned(), pp.Execution(max_physical_batch=physical)
    module.net[1].register_forward_hook(lambda *of: again.append(1))
    fit(module, plan, execution=execution)
    assert len(again) >= plan.steps  # in backward passes alone
    assert same(module.net, by_make_private(plan, execution=execution))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-mixed", torch.float32), ("64-true", torch.float64), ("bf16-true", torch.bfloat16)],
)
def test_other_precisions_are_those_of_make_private_too(precision, dtype):
    """With norms and sums outside of autocast, also where a step has several parts."""
    module, plan, execution = Classifier(), planned(), pp.Execution(max_physical_batch=5)
    fit(module, plan, trainer(precision=precision), execution=execution)
    assert same(module.net, by_make_private(plan, dtype, precision == "bf16-mixed", execution=execution))
    assert not same(module.net.float(), by_make_private(plan, execution=execution))


def test_a_loss_that_mixes_records_is_refused():
    class Mixes(Classifier):
        def training_step(self, batch, batch_idx):
            x, y = batch
            losses = F.cross_entropy(self(x), y, reduction="none")
            return (losses * losses.detach()).sum() / losses.detach().sum()

    class LeftOut(Classifier):
        def training_step(self, batch, batch_idx):
            return None

    with pytest.raises(pp.InvalidInput, match="records"):
        fit(Mixes(), planned())
    with pytest.raises(pp.InvalidInput, match="every step counts"):
        fit(LeftOut(), planned())


def test_more_steps_than_the_plan_has_are_refused():
    data = PrivateDataModule(records(), planned(steps=2))
    trainer().fit(Classifier(), datamodule=data)
    with pytest.raises(pp.InvalidInput, match="trained on before"):
        trainer().fit(Classifier(), datamodule=data)


def test_without_the_plan_the_data_are_no_data():
    """Whoever takes the loader out and trains on it otherwise gets no record."""
    data = PrivateDataModule(records(), planned())
    with pytest.raises((TypeError, AttributeError, ValueError)):
        trainer().fit(Classifier(), train_dataloaders=data.train_dataloader())


def test_another_fit_of_the_same_trainer_is_plain():
    used = trainer()
    fit(Classifier(), planned(steps=2), used)
    used = trainer(callbacks=[callback for callback in used.callbacks if type(callback).__name__ == "PrivateFit"])
    used.fit(Classifier(), DataLoader(records(), 20))
    assert used.global_step == 3


def test_everybody_is_charged_by_their_own_gradients_as_in_make_private():
    options = {"individual": pp.Individual(every=2), "loss_fn": LOSS, "seed": 3}
    module, plan = Classifier(), planned()
    data = PrivateDataModule(records(), plan, **options, execution=pp.Execution(max_physical_batch=5))
    with pytest.raises(pp.InvalidInput, match="nothing was trained yet"):
        data.spending()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        trainer().fit(module, datamodule=data)
        bare = network()
        done = pp.train(bare, torch.optim.SGD(bare.parameters(), lr=0.5), records(), plan, **options)
    assert same(module.net, by_make_private(plan, execution=pp.Execution(max_physical_batch=5), **options))
    assert not same(module.net, by_make_private(plan))
    assert np.allclose(data.spending().epsilon("rdp"), done.spending.epsilon("rdp"), rtol=1e-3)
    assert (data.spending().epsilon("rdp") < plan.spent()).any()
    with pytest.raises(pp.InvalidInput, match=r"Parts\(x\).* no forward\(\)"):
        fit(Parts(), plan, **options)


def test_plans_with_extra_steps_are_not_here():
    with pytest.raises(pp.Unsupported, match=r"use pp\.train"):
        PrivateDataModule(records(), planned(extra_steps=5))


def test_it_does_not_go_by_batches_of_the_loader():
    """The broken twin: each physical batch a step of Lightning, whose number would tell who was drawn."""
    plan = planned(steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model, optimizer, loader = pp.make_private(
            model, optimizer, records(), plan, seed=3, execution=pp.Execution(max_physical_batch=2)
        )
    assert isinstance(loader, PrivateLoader)
    batches = 0
    for x, y in loader:
        batches += 1
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert batches > plan.steps
    used = fit(Classifier(), plan, execution=pp.Execution(max_physical_batch=2))
    assert used.fit_loop.epoch_loop.batch_progress.total.completed == plan.steps


def test_under_a_ledger_steps_are_reserved_and_charged(tmp_path):
    ids = np.array([f"C{k}" for k in range(30)])
    granted = np.array([0.5, 1.0, 2.0])[np.arange(30) % 3]
    ledger, logger = new_ledger(tmp_path), Kept()
    ledger.join(ids, granted)
    shape = {"steps": 4, "batch_size": 10, "noise_multiplier": 4.0, "accountant": "rdp", "at_most": 0.1}
    plan = pp.plan(pp.Budgets(granted, delta=1e-5, person=ids), ledger=ledger, **shape)
    private = PrivateDataModule(
        records(30), plan, person=ids, ledger=ledger, purpose="a test", folder=tmp_path / "run"
    )
    used = trainer(logger=logger, log_every_n_steps=1)
    used.fit(Classifier(), datamodule=private)
    orders = [rung.order for rung in ledger.rungs]
    due = 4 * np.array([[step_cost(rate, 4.0, order) if rate else 0.0 for order in orders] for rate in plan.rates])
    assert np.allclose(charged(ledger, ids), due, rtol=1e-6, atol=1e-9)
    assert due.max() > 0
    assert logger.told["epsilon_at_most"] == pytest.approx(0.1)  # the cap, and not what somebody holds
    with pytest.raises(pp.InvalidInput, match="give it as ledger="):
        PrivateDataModule(records(30), plan, person=ids)


@pytest.mark.parametrize(("at_most", "seed"), [(5.0, None), (None, None), (5.0, 3)])
def test_loggers_get_the_cap_that_may_be_told(at_most, seed):
    """Without a cap the largest ε is somebody's; with a seed nothing is private."""
    logger = Kept()
    used = trainer(logger=logger, log_every_n_steps=1)
    fit(Classifier(), planned(at_most=at_most), used, seed=seed)
    assert logger.told.get("epsilon_at_most") == (5.0 if at_most and seed is None else None)


@pytest.mark.hf
@pytest.mark.needs("hf", "peft")
def test_a_model_of_hugging_face_with_adapters_trains_in_a_module():
    import peft
    import transformers

    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    texts = torch.randint(5, 60, (60, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": text, "labels": text[0] % 2} for text in texts]

    def adapted():
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(transformers.BertConfig(intermediate_size=32, **sizes))
        return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))

    class Adapted(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.loss = adapted(), pp.losses.for_model(adapted().base_model.model)

        def training_step(self, batch, batch_idx):
            return self.loss(self.model(input_ids=batch["input_ids"]), batch["labels"])

        def configure_optimizers(self):
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.5)

    module, bare, plan = Adapted(), adapted(), planned(steps=3)
    fit(module, plan, data=data)
    optimizer = torch.optim.SGD([p for p in bare.parameters() if p.requires_grad], lr=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        model, optimizer, loader = pp.make_private(bare, optimizer, data, plan, seed=3)
        for batch in loader:
            optimizer.zero_grad()
            optimizer.backward(module.loss(model(input_ids=batch["input_ids"]), batch["labels"]))
            optimizer.step()
    assert same(module.model, bare)
    moved = [name for name, value in adapted().named_parameters() if not torch.equal(value, bare.get_parameter(name))]
    assert moved == [name for name, value in bare.named_parameters() if value.requires_grad]
