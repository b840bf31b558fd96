"""Hugging Face's Trainer by a plan. Models and adapters of Hugging Face go into `pp.make_private` without it."""

from importlib.util import find_spec

if _missing := [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]:
    raise ImportError(f"privypurse.huggingface needs {_missing[0]}: pip install '.[huggingface]' in a clone")

from privypurse.huggingface.trainer import Trainer

__all__ = ["Trainer"]
