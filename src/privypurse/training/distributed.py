"""Training across processes: who this one is, and how their sums become one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput, Unsupported

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The processes of one run, as torchrun started them; alone without it.

    They trust each other: sums travel between them before they are noisy in total.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def found(cls) -> Processes:
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        started = os.environ.get("WORLD_SIZE", "1")
        if started != "1" and "RANK" in os.environ:
            raise InvalidInput(
                f"{started} processes were started, but they do not know of each other, and each would spend "
                "everyone's budget; call torch.distributed.init_process_group() first"
            )
        return cls()

    @property
    def first(self) -> bool:
        """One process counts the steps, adds the noise and writes the files."""
        return self.rank == 0

    def share(self, rates: FloatArray) -> FloatArray:
        """The rates of the units that this process draws: each unit, whole, belongs to one process."""
        mine = np.arange(rates.size) % self.size == self.rank
        return np.where(mine, rates, 0.0)

    def agree(self, parameters: Iterable[Tensor]) -> None:
        """Start everywhere from the first process's values."""
        if self.size > 1:
            for parameter in parameters:
                dist.broadcast(parameter.data, src=0)

    def total(self, values: Sequence[Tensor]) -> None:
        """Add up over all processes, in place."""
        if self.size > 1:
            for waiting in [dist.all_reduce(value, async_op=True) for value in values]:
                waiting.wait()

    def same(self, value: T) -> T:
        """The first process's value."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]


_SHARDING = ("torch.distributed.fsdp", "torch.distributed._composable", "deepspeed", "fairscale")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of torch.compile or DistributedDataParallel; neither's own backward pass is used here.

    Raises where it is spread over processes or GPUs.
    """
    wrappers = nn.parallel.DistributedDataParallel, torch._dynamo.eval_frame.OptimizedModule
    while isinstance(model, wrappers):
        model = model.module if isinstance(model, wrappers[0]) else model._orig_mod
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__module__.startswith(_SHARDING) or kind is nn.DataParallel:
                _refuse_sharded(f"{name or 'the model'} is a {kind.__name__} ({kind.__module__})")
    for name, parameter in model.named_parameters():
        kinds = {kind.__name__ for kind in type(parameter.data).__mro__}
        if "DTensor" in kinds or hasattr(parameter, "ds_id"):  # tensor parallelism; DeepSpeed's ZeRO-3
            _refuse_sharded(f"{name} is spread over processes")
    return model


def _refuse_sharded(what: str) -> None:
    raise Unsupported(
        f"{what}, but a record's norm is over all parameters, so every process needs one whole model. Give the model "
        "itself: under torchrun each process keeps its own (DistributedDataParallel around it is fine), and "
        "max_physical_batch, gradient checkpointing or adapters (LoRA) save memory"
    )
