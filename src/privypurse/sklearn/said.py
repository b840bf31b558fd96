"""What these estimators warn of: each has a class of its own, to be silenced or made an error by itself."""

from privypurse.errors import PrivyPurseWarning


class SpentBefore(PrivyPurseWarning):
    """The same people were trained on before in this process, and no ledger adds it up."""


class FittedStep(PrivyPurseWarning):
    """Something else learns from the same people, before or around, which nobody pays for: the promise is void."""


class LabelsNotPrivate(PrivyPurseWarning):
    """The classes were read off the labels, as asked for: which labels occur is not private."""
