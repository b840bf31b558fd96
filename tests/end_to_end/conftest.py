"""What tests of whole commands share."""

import pytest


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """A folder of one's own as the working directory, and a terminal so wide that no line is broken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "240")
    return tmp_path
