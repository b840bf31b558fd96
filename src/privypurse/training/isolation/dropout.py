"""Dropout switched off, wherever it is asked for, while everything else goes on as in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_NAMES = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
_DROPOUTS = {
    *(getattr(torch, name + end) for name in _NAMES for end in ("", "_")),
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
}
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_DROPOUT_OF_ATTENTION = 4  # its place among the arguments of scaled_dot_product_attention


class DropoutOff(TorchFunctionMode):
    """The functions of dropout, which its layers call too, give back what they were given."""

    _off = True

    @contextmanager
    def on_again(self) -> Iterator[None]:
        """Inside dropout drops: for a backward pass, which runs outside of the mode what it runs again."""
        self._off = False
        try:
            yield
        finally:
            self._off = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if not self._off:
            return func(*args, **options)
        if func in _DROPOUTS:
            return args[0] if args else options["input"]
        if func is F.scaled_dot_product_attention:
            args = (*args[:_DROPOUT_OF_ATTENTION], *(0.0 for _ in args[_DROPOUT_OF_ATTENTION:][:1]), *args[5:])
            options |= {"dropout_p": 0.0} if "dropout_p" in options else {}
        elif func in _RECURRENT:
            rate = next(k for k, value in enumerate(args) if isinstance(value, bool)) + 2  # bias, layers, dropout
            args = (*args[:rate], 0.0, *args[rate + 1 :])
        elif func is F.multi_head_attention_forward:
            options["training"] = False
        return func(*args, **options)
