"""What a backward pass would go through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor


def nodes(roots: Iterable[Tensor], until: tuple[type, ...] = ()) -> Iterator[Any]:
    """The nodes of autograd's graph behind these tensors, each once, but for those of kinds ``until`` and behind."""
    waiting: list[Any] = [root.grad_fn for root in roots]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or isinstance(node, until):
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]
