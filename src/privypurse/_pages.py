"""Pages that people keep: one HTML file each, which loads nothing from anywhere and runs no script but its own.

Templates are in `templates/`. Whatever is put into them is escaped. A Content-Security-Policy in the page itself lets
the browser use exactly the style and the script that were written here, by their SHA-256, and refuses all else: also
what somebody might have smuggled into a purpose or an id.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("privypurse", "templates"),
        autoescape=True,
        undefined=StrictUndefined,  # a name that was not given is an error, not a gap in a page
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(template: str, *, script: str | None = None, **values: Any) -> str:
    """The page of this template in `templates/`, with these values; ``script`` names a file there that it may run."""
    texts = {"style": _source("page.css"), "script": "" if script is None else _source(script)}
    allowed = {kind: f"'{_digest(text)}'" if text else "'none'" for kind, text in texts.items()}
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {allowed['style']}; script-src {allowed['script']}"
    )
    # Our own files, not anybody's input: they go in as they are, so that their digests hold.
    ours = {kind: Markup(text) for kind, text in texts.items()}
    return _templates().get_template(template).render(**values, **ours, policy=policy)


def _source(name: str) -> str:
    loader = _templates().loader
    assert loader is not None
    return loader.get_source(_templates(), name)[0]


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
