"""What every page that people keep must be: whole in itself, readable, and safe with whatever was written into it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "input", "br", "hr", "img", "link"}
LOADING = {"src", "srcset", "href", "action", "formaction", "data", "poster", "background", "ping", "manifest"}


@dataclass
class Page(HTMLParser):
    """A page, parsed: its elements with their attributes, and the text inside of each kind of element."""

    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    badly_closed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    @classmethod
    def of(cls, html: str) -> Page:
        parsed = cls()
        parsed.feed(html)
        parsed.close()
        parsed.badly_closed += parsed.open
        return parsed

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1:] == [tag]:
            self.open.pop()
        else:
            self.badly_closed.append(tag)

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def complaints(html: str, *, drawing: bool = False) -> list[str]:
    """What is wrong with a page; one that is ``drawing`` has a library of charts, which makes styles as it goes."""
    parsed = Page.of(html)
    wrong = [f"{tag} is badly closed" for tag in parsed.badly_closed]
    for tag, attributes in parsed.elements:
        wrong += [f"{tag} {name}" for name in attributes if name in LOADING or name.startswith("on")]
        wrong += [f"{tag} style" for name in attributes if name == "style"]
        if tag in ("link", "img", "iframe", "object", "embed", "video", "audio", "base"):
            wrong.append(tag)
    style = "".join(parsed.texts.get("style", []))
    wrong += re.findall(r"url\(|@import|@font-face|expression\(", style)
    wrong += _of_headings([int(tag[1]) for tag, _ in parsed.elements if re.fullmatch("h[1-6]", tag)])
    if not parsed.all("html")[0].get("lang"):
        wrong.append("no lang")
    if not any(meta.get("name") == "viewport" for meta in parsed.all("meta")):
        wrong.append("no viewport")
    wrong += [f"contrast {said}" for said in _of_contrast(style)]
    return wrong + _of_policy(parsed, drawing)


def _of_headings(levels: list[int]) -> list[str]:
    if levels[:1] != [1] or levels.count(1) != 1:
        return ["not one h1 first"]
    return [f"h{b} after h{a}" for a, b in pairwise(levels) if b > a + 1]


def _of_policy(parsed: Page, drawing: bool) -> list[str]:
    """The policy refuses everything but this very style and script."""
    policies = [m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    if len(policies) != 1:
        return ["no policy"]
    said = dict(part.strip().split(" ", 1) for part in policies[0].split(";"))
    wrong = [name for name in ("default-src", "base-uri", "form-action") if said.get(name) != "'none'"]
    for kind in ("style", "script"):
        texts = parsed.texts.get(kind, [])
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
        if kind == "style" and drawing:
            allowed = "'unsafe-inline'"
        if said.get(f"{kind}-src") != allowed:
            wrong.append(f"{kind}-src does not fit")
    return wrong


def _of_contrast(style: str) -> list[str]:
    """WCAG 2.2, 1.4.3 and 1.4.11: 4.5 for text, 3 for lines, in light, dark and print."""
    found = []
    for block in re.findall(r":root\s*{([^}]*)}", style):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for name, least in {"text": 4.5, "quiet": 4.5, "strong": 4.5, "line": 3.0}.items():
            ratio = contrast(colours[name], colours["ground"])
            if ratio < least:
                found.append(f"{name} {ratio:.2f}")
    return found


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours, #rrggbb."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
