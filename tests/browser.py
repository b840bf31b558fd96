"""A browser for tests of pages: Debian's Chromium, or Playwright's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def why_not() -> str | None:
    """Why there is none; None where there is. Playwright itself is known to be there."""
    own = Path.home() / ".cache" / "ms-playwright"
    if shutil.which("chromium") or list(own.glob("chromium*")):
        return None
    return "there is no Chromium: make browser (as root, on Debian), or playwright install chromium"


@contextmanager
def launched() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root has to do without a sandbox around our own pages.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()
