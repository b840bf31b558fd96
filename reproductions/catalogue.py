"""The tables' files: which there are, and which of the two kinds each is."""

import tomllib
from pathlib import Path

from privypurse.errors import InvalidInput
from reproductions.choice import Rivals, rivals_of
from reproductions.grid import Grid, grid_of

TABLES = Path(__file__).parent / "tables"
RESULTS = Path(__file__).parent / "results"
"""Results that are kept in the repository: those of the headline."""


def available() -> list[Path]:
    return sorted(TABLES.glob("*.toml"))


def load(name: str) -> Grid | Rivals:
    """A table by its name, or by the path of a file."""
    if name.endswith(".toml"):
        return read(Path(name))
    for path in available():
        if path.stem == name:
            return read(path)
    raise InvalidInput(f"there is no table {name!r}; choose one of {', '.join(path.stem for path in available())}")


def read(path: Path) -> Grid | Rivals:
    """The table in a file; one with a [choice] chooses its settings by itself."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return rivals_of(content, path.stem) if "choice" in content else grid_of(content, path.stem)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path.name}: {error}") from None


def load_rivals(name: str) -> Rivals:
    table = load(name)
    if not isinstance(table, Rivals):
        raise InvalidInput(f"table {name} has no [choice]; it is no row of the headline")
    return table
