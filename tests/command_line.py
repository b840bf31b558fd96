"""Commands as they are typed, with what they print."""

import shlex

import pytest

from privypurse import cli


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    code = cli.main(shlex.split(line))
    said = capsys.readouterr()
    return code, said.out, said.err


def done(capsys: pytest.CaptureFixture[str], line: str) -> str:
    """Standard output of a command that goes well and complains of nothing."""
    code, out, error = run(capsys, line)
    assert (code, error) == (0, "")
    return out
