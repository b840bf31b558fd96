"""What of Lightning's Trainer would break the promise is refused by name, before the first step."""

# ruff: noqa: E402

import copy
from functools import partial

import pytest

import components

components.require("lightning")

import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
    ThroughputMonitor,
)
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.tuner import Tuner
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics.classification import MulticlassAccuracy

import privypurse as pp
from lightning_tools import Classifier, fit, planned, records, run_script, trainer
from privypurse.lightning import PrivateDataModule, settings
from privypurse.training.isolation.memory import Memory

torch.set_num_threads(1)
pytestmark = [pytest.mark.lightning, pytest.mark.needs("lightning")]

REFUSED = {
    "accumulate_grad_batches": {"accumulate_grad_batches": 2},
    "gradient_clip_val": {"gradient_clip_val": 1.0},
    "overfit_batches": {"overfit_batches": 2},
    "reload_dataloaders_every_n_epochs": {"reload_dataloaders_every_n_epochs": 1},
    "detect_anomaly": {"detect_anomaly": True},
    "max_epochs is 2": {"max_epochs": 2},
    "max_epochs is 1000": {"max_epochs": None},
    "max_epochs is -1": {"max_epochs": -1},
    "max_steps is 7": {"max_epochs": -1, "max_steps": 7},
    "max_epochs is 3": {"max_epochs": 3, "limit_train_batches": 0.5},
    "GradScaler": {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]},
    "GradientAccumulationScheduler": {"callbacks": [GradientAccumulationScheduler({0: 2})]},
    "LearningRateFinder": {"callbacks": [LearningRateFinder()]},
    "BatchSizeFinder": {"callbacks": [BatchSizeFinder()]},
    "ThroughputMonitor": {"callbacks": [ThroughputMonitor(len)]},
}


class Took(Exception):
    pass


@pytest.fixture
def no_step(monkeypatch):
    def step(self, *of):
        raise Took

    monkeypatch.setattr("privypurse.training.mechanism.PrivateRun.release", step)


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_name(what, no_step):
    used = trainer(**REFUSED[what])
    with pytest.raises((pp.Unsupported, pp.InvalidInput), match=what):
        fit(Classifier(), planned(steps=6), used)


def test_processes_that_nobody_counts_for_are_refused():
    """By fork or spawn: asked here, since a fit would raise in one of them."""
    with pytest.raises(pp.Unsupported, match="fork or spawn"):
        settings.refuse_settings(trainer(devices=2, strategy="ddp_fork"), Classifier(), planned())


def test_what_is_sound_is_not_refused(no_step):
    """The same road with nothing to refuse comes to its first step."""
    for options in ({}, {"max_epochs": -1, "max_steps": 6}, {"max_epochs": 3, "limit_train_batches": 2}):
        with pytest.raises(Took):
            fit(Classifier(), planned(steps=6), trainer(**options))


@pytest.mark.parametrize("strategy", [FSDPStrategy, ModelParallelStrategy])
def test_strategies_that_cut_parameters_are_refused(strategy):
    used = trainer()
    used._accelerator_connector.strategy = strategy()
    with pytest.raises(pp.Unsupported, match=f"strategy is {strategy.__name__}"):
        settings.refuse_settings(used, Classifier(), planned())


def test_a_strategy_of_ones_own_is_refused():
    class DeepSpeedStrategy(SingleDeviceStrategy):
        pass

    with pytest.raises(pp.Unsupported, match="strategy is DeepSpeedStrategy"):
        fit(Classifier(), planned(), trainer(strategy=DeepSpeedStrategy(accelerator=None)))


class Manual(Classifier):
    automatic_optimization = False


class Clips(Classifier):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, 1.0, "norm")


class Iterates(Classifier):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter), 0)


class Newton(Classifier):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


class Accumulates(Classifier):
    """By hand, in the hook that Lightning has for it."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


class SavesAMetric(Classifier):
    def __init__(self):
        super().__init__()
        self.accuracy = MulticlassAccuracy(3)
        self.accuracy.persistent(True)


class WritesABuffer(Classifier):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.seen = self.seen + batch[0].detach().sum()
        return super().training_step(batch, batch_idx)


class Keeps(Classifier):
    """A parameter that no optimizer holds, a buffer, and what is saved beside them."""

    def __init__(self):
        super().__init__()
        self.center = torch.nn.Parameter(torch.zeros(6), requires_grad=False)
        self.register_buffer("mean", torch.zeros(()))
        self.seen = []

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.5)


@torch.no_grad()
def into_a_trained_one(module, number):
    module.net[0].bias.add_(number)


@torch.no_grad()
def into_a_frozen_one(module, number):
    module.center.fill_(number)


WRITES = {
    "net.0.bias": into_a_trained_one,
    "center": into_a_frozen_one,
    "center by .data =": lambda module, number: setattr(module.center, "data", torch.full((6,), number)),
    "center through .data": lambda module, number: module.center.data.fill_(number),
    "mean": lambda module, number: module.mean.fill_(number),
    "mean by .data =": lambda module, number: setattr(module.mean, "data", torch.tensor(number)),
    "mean through .data": lambda module, number: module.mean.data.fill_(number),
    "_extra_state": lambda module, number: module.seen.append(number),
}


@pytest.mark.parametrize("where", ["training_step", "on_after_batch_transfer"])
@pytest.mark.parametrize("name", WRITES)
def test_nothing_of_the_records_is_written_into_what_is_saved(name, where):
    """The broken twin, a plain fit, has it in its state_dict."""

    class Writes(Keeps):
        def training_step(self, batch, batch_idx):
            if where == "training_step":
                WRITES[name](self, batch[0].mean().item())
            return super().training_step(batch, batch_idx)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            if where != "training_step":
                WRITES[name](self, batch[0].mean().item())
            return batch

    module = Writes()
    with pytest.raises(pp.InvalidInput, match=rf"training_step wrote into {name.split()[0]}.* on_train_batch_end"):
        fit(module, planned())
    before = copy.deepcopy(module.state_dict()[name.split()[0]])
    trainer(limit_train_batches=1).fit(module, DataLoader(records(), 20))
    after = module.state_dict()[name.split()[0]]
    assert not torch.equal(torch.as_tensor(before), torch.as_tensor(after))


def test_what_is_written_through_data_later_on_is_found_by_chance(monkeypatch):
    """From the third step on: found where it is asked, which nobody can foresee."""

    class Late(Keeps):
        steps = 0

        def training_step(self, batch, batch_idx):
            self.steps += 1
            if self.steps > 2:
                self.mean.data.fill_(batch[0].mean().item())
            return super().training_step(batch, batch_idx)

    monkeypatch.setattr("privypurse.training.step_randomness._LATER", 0.0)
    assert fit(Late(), planned()).global_step == 6
    monkeypatch.setattr("privypurse.training.step_randomness._LATER", 1.0)
    with pytest.raises(pp.InvalidInput, match="wrote into mean"):
        fit(Late(), planned())


def test_averages_and_pruning_between_steps_and_frozen_layers_that_are_read_are_sound():
    class Sound(Keeps):
        def __init__(self):
            super().__init__()
            self.teacher = copy.deepcopy(self.net).requires_grad_(False).eval()

        def training_step(self, batch, batch_idx):
            x, y = batch
            with torch.no_grad():
                self.last = self.teacher(x.detach()).shape
            return F.cross_entropy(self(x - self.center), y)

        @torch.no_grad()
        def on_train_batch_end(self, *of):
            for mine, theirs in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
            self.net[3].weight.mul_(self.net[3].weight.abs() > 0.01)
            self.seen.append(self.global_step)
            self.mean.add_(1)

    module, averaging = Sound(), StochasticWeightAveraging(0.1, swa_epoch_start=0.5)
    used = fit(module, planned(), trainer(max_epochs=3, limit_train_batches=2, callbacks=[averaging]))
    assert (used.global_step, module.seen, int(module.mean)) == (6, [1, 2, 3, 4, 5, 6], 6)


class Remembers(Classifier):
    def forward(self, x):
        self.last = self.net[0](x)
        return self.net(x)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (SavesAMetric, r"accuracy\.persistent\(False\)"),
        (WritesABuffer, "wrote into seen"),
        (Remembers, "keeps something of the records in last"),
        (Manual, "automatic_optimization = False"),
        (Clips, "configure_gradient_clipping"),
        (Iterates, "dataloader_iter"),
        (Newton, "LBFGS"),
        (Accumulates, "left without a step"),
    ],
)
def test_modules_that_go_past_the_plan_are_refused(kind, what):
    with pytest.raises((pp.Unsupported, pp.InvalidInput, RuntimeError), match=what):
        fit(kind(), planned())


OPTIMIZERS = {
    "a list": (2, lambda one, two: [one, two]),
    "with schedulers": (2, lambda one, two: ([one, two], [torch.optim.lr_scheduler.StepLR(one, 1)])),
    "by name": (2, lambda one, two: [{"optimizer": one}, {"optimizer": two, "lr_scheduler": {}}]),
    "none": (0, lambda one, two: None),
}


@pytest.mark.parametrize("form", OPTIMIZERS)
def test_several_optimizers_are_refused_and_one_with_groups_is_proposed(form):
    """Lightning itself proposes manual optimization, whose steps would go past the plan's."""
    count, configured = OPTIMIZERS[form]

    class Several(Classifier):
        def configure_optimizers(self):
            return configured(*(torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.net[0], self.net[3])))

    with pytest.raises(pp.InvalidInput, match=rf"configure_optimizers gives {count} optimizers.*AdamW\(\[\{{"):
        fit(Several(), planned())


def test_one_optimizer_with_groups_and_a_scheduler_is_taken():
    class Groups(Classifier):
        def configure_optimizers(self):
            layers = [
                {"params": self.net[0].parameters(), "lr": 0.1},
                {"params": self.net[3].parameters(), "lr": 0.5},
            ]
            made = torch.optim.SGD(layers)
            return [made], [{"scheduler": torch.optim.lr_scheduler.StepLR(made, 1), "interval": "step"}]

    assert fit(Groups(), planned(steps=2)).global_step == 2


def test_a_compiled_module_is_refused():
    with pytest.raises(pp.Unsupported, match=r"torch\.compile"):
        fit(torch.compile(Classifier()), planned())


def test_tuning_on_people_is_refused():
    private = PrivateDataModule(records(), planned(steps=200), seed=3)
    with pytest.raises(pp.Unsupported, match="LearningRateFinder"):
        Tuner(trainer()).lr_find(Classifier(), datamodule=private)


def test_loggers_that_upload_checkpoints_are_refused():
    class Uploads:
        _log_model = "all"

    used = trainer()
    used.loggers = [Uploads()]
    with pytest.raises(pp.Unsupported, match="Uploads has log_model"):
        settings.refuse_settings(used, Classifier(), planned())


def test_the_steps_are_no_loader_whose_sampler_lightning_replaces(monkeypatch):
    """The broken twin, a DataLoader, gets a DistributedSampler: shuffled, for each process the same number."""
    used = trainer()
    monkeypatch.setattr(type(used._accelerator_connector), "is_distributed", True)
    monkeypatch.setattr(type(used), "distributed_sampler_kwargs", {"num_replicas": 2, "rank": 0})
    steps, twin = PrivateDataModule(records(), planned()).train_dataloader(), DataLoader(records(), shuffle=True)
    prepare = partial(used._data_connector._prepare_dataloader, shuffle=True, mode=RunningStage.TRAINING)
    assert prepare(steps) is steps
    assert isinstance(prepare(twin).sampler, DistributedSampler)


def test_what_is_looked_through_for_traces_of_records_is_the_module_and_not_its_trainer():
    used, module = trainer(), Classifier()
    fit(module, planned(), used)
    assert module.trainer is used
    assert not [path for path in Memory(module).leaves if "trainer" in path]


DDP = """
from lightning_tools import *
from training_tools import same

if __name__ == "__main__":
    plan, module, execution = planned(steps=5), Classifier(), pp.Execution(max_physical_batch=4)
    used = fit(module, plan, trainer(devices=2, strategy="ddp"), val_dataloaders=public(), execution=execution)
    alike = same(module.net, by_make_private(plan, execution=execution))
    (Path.cwd() / f"rank{used.global_rank}").write_text(f"{used.global_step} {alike} {used.world_size}")
"""


@pytest.mark.slow
def test_two_processes_take_the_steps_of_make_private_in_two_processes(tmp_path):
    done = run_script(DDP, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == ["5 True 2"] * 2


def test_the_parts_that_are_proposed_fit_the_plan():
    for steps, parts in (
        (6, r"max_epochs=6, limit_train_batches=1\)"),
        (25, r"max_epochs=10, limit_train_batches=2\)"),
    ):
        with pytest.raises(pp.InvalidInput, match=parts):
            fit(Classifier(), planned(steps=steps), trainer(max_epochs=100))
    assert fit(Classifier(), planned(steps=6), trainer(max_epochs=6, limit_train_batches=1)).global_step == 6


@pytest.mark.parametrize("kind", ["data set", "list", "dictionaries"])
def test_records_in_place_of_a_loader_are_told_so(kind):
    made = {"data set": records(4), "list": [*records(4)], "dictionaries": [{"x": torch.ones(2), "y": 1}]}
    with pytest.raises(pp.InvalidInput, match=r"give a loader of them: DataLoader\(others"):
        PrivateDataModule(records(), planned(), val_dataloaders=made[kind])


def test_the_training_data_are_refused_for_validation_before_a_step_is_taken():
    data = records()
    with pytest.raises(pp.InvalidInput, match="this is the training data"):
        PrivateDataModule(data, planned(), val_dataloaders=[DataLoader(records(4)), DataLoader(data)])


def test_what_is_no_plan_is_named():
    with pytest.raises(pp.InvalidInput, match="plan is a TensorDataset; make one"):
        PrivateDataModule(planned(), records())
