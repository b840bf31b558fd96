"""Whatever writes to what is saved with a model is seen, and what only reads it is not."""

import numpy as np
import pytest
import torch
from torch import nn

from privypurse.training.isolation.saved import Saved

torch.set_num_threads(1)


class Model(nn.Module):
    """Trained and frozen parameters, buffers of all kinds, and something beside them that is saved."""

    def __init__(self):
        super().__init__()
        self.net, self.center = nn.Linear(3, 3), nn.Parameter(torch.arange(9.0).view(3, 3), requires_grad=False)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("waves", torch.full((2,), torch.nan, dtype=torch.complex64), persistent=False)
        self.register_buffer("rows", torch.eye(2).to_sparse())
        self.register_buffer("none", None)
        self.register_buffer("short", torch.zeros(2).to(torch.float8_e4m3fn))
        self.extra = {"list": [1.0, np.float32(2.0)], "tensor": torch.zeros(2)}

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def by_a_new_tensor_at_the_old_address(model):
    for _ in range(4):
        model.center.data = model.center.data + 1.0


BY_MARKS = {
    "center": lambda m: setattr(m.center, "data", torch.ones(3, 3)),
    "center turned": lambda m: setattr(m.center, "data", m.center.data.t()),
    "center again": by_a_new_tensor_at_the_old_address,
    "net.bias": lambda m: m.net.bias.detach().add_(1.0),
    "mean": lambda m: setattr(m, "mean", torch.zeros(3)),
    "rows": lambda m: m.rows.mul_(2.0),
    "new": lambda m: m.register_buffer("new", torch.zeros(1)),
}
BY_CONTENTS = {
    "center": lambda m: m.center.data.mul_(2.0),
    "net.bias": lambda m: m.net.bias.data.add_(1e-6),
    "mean": lambda m: m.mean.numpy().__setitem__(0, 1.0),
    "count": lambda m: m.count.data.add_(1),
    "seen": lambda m: m.seen.data.fill_(True),
    "waves": lambda m: m.waves.data.fill_(1j),
    "short": lambda m: m.short.data.copy_(torch.ones(2)),
    "_extra_state.list.2": lambda m: m.extra["list"].append(1.0),
    "_extra_state.list.1": lambda m: m.extra["list"].__setitem__(1, np.float32(3.0)),
    "_extra_state.tensor": lambda m: m.extra["tensor"].add_(1.0),
}


@pytest.mark.parametrize("name", BY_MARKS)
def test_versions_and_addresses_tell_at_any_time(name):
    for contents in (False, True):
        model = Model()
        saved = Saved(model, contents)
        BY_MARKS[name](model)
        assert saved.written() == [name.split()[0]]


@pytest.mark.parametrize("name", BY_CONTENTS)
def test_values_tell_what_they_do_not(name):
    for contents in (False, True):  # the broken twin first, which goes by versions and addresses
        model = Model()
        saved = Saved(model, contents)
        BY_CONTENTS[name](model)
        assert saved.written() == ([name] if contents else [])


def test_an_entry_that_only_state_dict_makes_is_saved_too():
    class Adds(Model):
        kept = torch.zeros(2)

        def state_dict(self, *given, **options):
            return super().state_dict(*given, **options) | {"kept": self.kept, "mean": self.kept + 1.0}

    for name, write in {"kept of state_dict": lambda m: setattr(m, "kept", torch.ones(2))}.items():
        model = Adds()
        saved = Saved(model, contents=True)
        write(model)
        assert name in saved.written()


def test_who_only_reads_is_not_seen():
    model = Model()
    saved = Saved(model, contents=True)
    loss = model.net(model.center + model.mean).sum()
    loss.backward()
    model.net.requires_grad_(False)
    model.eval().last = loss.item()
    assert saved.written() == []


def test_what_only_moves_is_not_written_to():
    """As the weights of an LSTM, which cuDNN gathers in one place at every pass."""
    model = Model()
    saved = Saved(model, contents=True)
    for value in model.parameters():
        value.data = value.data.clone()
    assert saved.written() == []
