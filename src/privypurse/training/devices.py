"""Devices by name."""

from __future__ import annotations

import torch

from privypurse.errors import InvalidInput


def device_of(name: str) -> torch.device:
    """The device of that name, if it can be used; "auto" is a GPU where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        if "Expected one of" in reason:  # and some twenty names that torch knows
            reason = "there is none of that name"
        raise InvalidInput(f'device {name!r} cannot be used ({reason}); write "auto" or "cpu"') from None
    return device
