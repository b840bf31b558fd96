"""Plans that many tests train by are made once in a process: solving one takes longer than training by it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Made = TypeVar("Made")


def made_once(make: Callable[Asked, Made]) -> Callable[Asked, Made]:
    """For what nobody can change: the same arguments, arrays too, give what they gave before."""
    made: dict[bytes, Made] = {}

    @wraps(make)
    def once(*args: Asked.args, **options: Asked.kwargs) -> Made:
        key = pickle.dumps((args, sorted(options.items())))
        if key not in made:
            made[key] = make(*args, **options)
        return made[key]

    return once
