"""What went wrong, in the user's words: each message names the argument, the value and the mend."""


class PrivyPurseError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidInput(PrivyPurseError, ValueError):
    """An argument, a file or a column is not what it has to be. Nothing was dropped or clipped."""


class InfeasibleBudget(PrivyPurseError, ValueError):
    """Somebody's budget cannot be kept with the given training shape. There is no silent fallback."""

    def __init__(self, message: str, epsilon: float | None = None, delta: float | None = None) -> None:
        super().__init__(message)
        self.epsilon, self.delta = epsilon, delta


class Unsupported(PrivyPurseError, NotImplementedError):
    """An accountant was asked about a release for which it has no proven bound."""


class PrivyPurseWarning(UserWarning):
    """Something is sound but probably not what the user wanted."""
