"""How numbers are written on a page."""


def percent(share: float, digits: int = 1) -> str:
    """As in 12.3 %."""
    return f"{100 * share:.{digits}f} %"
