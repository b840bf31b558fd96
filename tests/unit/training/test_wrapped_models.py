"""Models that something has been done to: compiled in part, sharded over processes or GPUs."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import privypurse as pp
from made_once import made_once
from privypurse.training import gradients
from privypurse.training.distributed import unwrapped
from training_tools import LOSS, few_records

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
compiled = partial(torch.compile, backend="aot_eager")


@pytest.fixture(autouse=True)
def _nothing_compiled_yet() -> None:
    torch._dynamo.reset()


class Part(nn.Module):
    """Not of torch's own modules, which it does not compile by themselves."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def __getitem__(self, place: int) -> nn.Module:
        return self.layers[place]

    def __setitem__(self, place: int, layer: nn.Module) -> None:
        self.layers[place] = layer

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def network() -> Part:
    torch.manual_seed(0)
    return Part(nn.Linear(6, 8), Part(nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.2)), nn.Tanh(), nn.Linear(8, 2))


@made_once
def planned() -> pp.Plan:
    return pp.plan(pp.Budgets(np.full(60, 8.0), delta=1e-5), "scale", steps=3, batch_size=20, accountant="rdp")


def looped(inner: nn.Module, wrap: Callable[[nn.Module], nn.Module] = lambda model: model) -> list[Tensor]:
    model, optimizer, loader = pp.make_private(
        inner, torch.optim.SGD(inner.parameters(), lr=0.1), few_records(), planned(), seed=3
    )
    model = wrap(model)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [parameter.detach() for parameter in inner.parameters()]


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def a_part(model: Part) -> nn.Module:
    model[1] = compiled(model[1])
    return model


def a_part_in_place(model: Part) -> nn.Module:
    in_place(model[1])
    return model


def used_before(model: Part) -> nn.Module:
    """Compiled without the hooks that watch it, for parameters as they are while it is watched."""
    in_place(model).requires_grad_(False)
    model(torch.randn(60, 6))
    return model.requires_grad_(True)


class ByMethod(nn.Module):
    """What is compiled is a method that calls layers."""

    def __init__(self, layers: Part) -> None:
        super().__init__()
        self.layers = layers

    @compiled
    def run(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)  # type: ignore[no-any-return]


class ByFunction(nn.Module):
    """The same, as a function of its own."""

    def __init__(self, layers: Part) -> None:
        super().__init__()
        self.layers = layers
        self.run = compiled(lambda x: layers(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("make", [in_place, a_part, a_part_in_place, used_before, ByMethod, ByFunction])
def test_models_compiled_in_place_or_in_part_take_the_same_steps(make: Callable[..., nn.Module]) -> None:
    expected = looped(network())
    for one, other in zip(looped(make(network())), expected, strict=True):
        assert torch.equal(one, other)


def test_a_private_model_compiled_in_place_takes_the_same_steps() -> None:
    for one, other in zip(looped(network(), in_place), looped(network()), strict=True):
        assert torch.equal(one, other)


def test_compiled_blocks_with_gradient_checkpointing() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network().eval()
            in_place(self.layers[1])

        def forward(self, x: Tensor) -> Tensor:
            inner = checkpoint(self.layers[1], self.layers[0](x), use_reentrant=False)
            return self.layers[3](self.layers[2](inner))  # type: ignore[no-any-return]

    x, y = few_records().tensors
    expected = pp.per_record_norms(network().eval(), LOSS, x, y)
    assert torch.equal(pp.per_record_norms(Blocks(), LOSS, x, y), expected)


def test_while_it_trains_nothing_of_the_model_runs_compiled() -> None:
    """A compiled part may be one that was made without the hooks; elsewhere it stays compiled."""
    runs = []

    def backend(graph: Any, _: Any) -> Any:
        return lambda *given: (runs.append("compiled"), graph.forward(*given))[1]

    model = network().eval()
    model[1].compile(backend=backend)
    x, y = few_records().tensors
    recorder = gradients.Recorder(model)
    gradients.recorded(recorder, LOSS, x, y)
    assert not runs
    model(x)
    assert runs


class DeepSpeedEngine(nn.Module):
    """Stands for the real one, which is not installed here."""

    __module__ = "deepspeed.runtime.engine"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def zero_3(model: nn.Module) -> nn.Module:
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id = number  # as DeepSpeed marks what it has taken apart
    return model


@pytest.mark.parametrize(
    ("wrap", "named"),
    [
        (DeepSpeedEngine, "DeepSpeedEngine"),
        (zero_3, r"layers\.0\.weight is spread"),
        (nn.DataParallel, "DataParallel"),
    ],
)
def test_what_spreads_a_model_is_refused_by_name(wrap: Callable[[nn.Module], nn.Module], named: str) -> None:
    model = wrap(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(pp.Unsupported, match=named):
        pp.make_private(model, optimizer, few_records(), planned())
    with pytest.raises(pp.Unsupported, match=named):
        pp.train(model, optimizer, few_records(), planned(), LOSS)
    assert unwrapped(network()) is not None


@pytest.fixture
def _alone(tmp_path: Path) -> Any:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
@pytest.mark.filterwarnings("ignore")
def test_fully_sharded_and_tensor_parallel_models_are_refused_by_name() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1,))
    second, part = network(), network()
    fully_shard(second, mesh=mesh)
    fully_shard(part[1], mesh=mesh)
    first = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    parallel = parallelize_module(network(), mesh, {"layers.0": ColwiseParallel()})
    cases = [(first, "FullyShardedDataParallel"), (second, "the model is a FSDP"), (part, r"layers\.1 is a FSDP")]
    for model, named in [*cases, (parallel, r"layers\.0\.weight is spread")]:
        with pytest.raises(pp.Unsupported, match=named):
            pp.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), few_records(), planned())
    plain = network()
    assert unwrapped(nn.parallel.DistributedDataParallel(copy.deepcopy(plain))) is not None
