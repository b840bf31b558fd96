"""Make src/privypurse/data/adult.csv.bz2 from the two UCI files: python tools/pack_adult.py FOLDER."""

import bz2
import sys
from pathlib import Path

COLUMNS = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,"
    "capital_gain,capital_loss,hours_per_week,native_country,income"
)


def rows(path: Path) -> list[str]:
    """The records of one file: no blank or comment lines, no spaces, no full stop after the label."""
    lines = path.read_text(encoding="ascii").splitlines()
    return [line.rstrip(".").replace(", ", ",") for line in lines if line and not line.startswith("|")]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    records = rows(folder / "adult.data") + rows(folder / "adult.test")
    text = "\n".join([COLUMNS, *records]) + "\n"
    out = Path(__file__).parents[1] / "src/privypurse/data/adult.csv.bz2"
    out.write_bytes(bz2.compress(text.encode("ascii"), 9))
    print(f"{out}: {len(records):,} people, {out.stat().st_size:,} bytes")
