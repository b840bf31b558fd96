"""What went wrong, in the user's words: each message names the argument, the value and what to do."""


class PrivyPurseError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidInput(PrivyPurseError, ValueError):
    """An argument, a file or a column is not what it has to be. Nothing was dropped or clipped."""


class InfeasibleBudget(PrivyPurseError, ValueError):
    """Somebody's budget cannot be kept with the given training shape. There is no silent fallback."""

    def __init__(self, message: str, epsilon: float | None = None, delta: float | None = None) -> None:
        super().__init__(message)
        self.epsilon, self.delta = epsilon, delta


class PlanExhausted(PrivyPurseError, RuntimeError):
    """The plan has no more steps: another one would overdraw somebody."""


class PromiseBroken(PrivyPurseError):
    """Files or a ledger contradict what was promised: found by looking at them again, not made by the input."""


class Unsupported(PrivyPurseError, NotImplementedError):
    """Something for which there is no proven bound, or no private way: a release, an optimizer, a data set."""


class PrivyPurseWarning(UserWarning):
    """Something is sound but probably not what the user wanted."""
