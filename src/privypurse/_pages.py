"""Pages that people keep: one HTML file each, which loads nothing from anywhere and runs no script but its own.

Templates are in `templates/`. Whatever is put into them is escaped. A Content-Security-Policy in the page itself lets
the browser use exactly the style and the script that were written here, by their SHA-256, and refuses all else: also
what somebody might have smuggled into a purpose or an id.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
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


def page(
    template: str,
    *,
    script: str | None = None,
    libraries: Sequence[str] = (),
    styles: Sequence[str] = ("page.css",),
    **values: Any,
) -> str:
    """The page of this template in `templates/`, with these values.

    ``script`` names a file there that it may run, after the ``libraries``, which are texts of others' scripts;
    ``styles`` name what it looks like. Libraries that draw make styles of their own as they go: beside them the
    policy allows any style in the page, and no more.
    """
    style = "".join(map(_source, styles))
    scripts = [*libraries, *([] if script is None else [_source(script)])]
    if any("</script" in text.lower() for text in scripts):
        raise ValueError("a script that holds the end of a script element would end there")
    allowed = " ".join(f"'{_digest(text)}'" for text in scripts) or "'none'"
    styled = "'unsafe-inline'" if libraries else f"'{_digest(style)}'"
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {styled}; script-src {allowed}"
    # Our own files and libraries, not anybody's input: they go in as they are, so that their digests hold.
    ours = {"style": Markup(style), "scripts": [Markup(text) for text in scripts]}
    return _templates().get_template(template).render(**values, **ours, policy=policy)


def _source(name: str) -> str:
    loader = _templates().loader
    assert loader is not None
    return loader.get_source(_templates(), name)[0]


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
