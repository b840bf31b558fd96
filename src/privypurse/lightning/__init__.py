"""Lightning's Trainer by a plan: the training data come with the plan, in a data module."""

try:
    import lightning  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"privypurse.lightning needs {error.name}: pip install '.[lightning]' in a clone") from error

from privypurse.lightning.data_module import PrivateDataModule

__all__ = ["PrivateDataModule"]
