"""Pages are whole in themselves, escape what is put into them, and allow nothing but their own style and script."""

import jinja2
import pytest

from page_checks import complaints, contrast
from privypurse import _pages

HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>"


def empty_page(title: str = "title") -> str:
    values = {"title": title, "whole": 10, "used": 3}
    return _pages.page("receipt.html", sections=[], **values)


def test_a_page_is_whole_in_itself_and_escapes_what_is_put_into_it() -> None:
    assert complaints(empty_page()) == []
    assert complaints(empty_page(HOSTILE)) == []
    assert HOSTILE not in empty_page(HOSTILE)


def test_without_escaping_the_check_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pages._templates(), "autoescape", False)
    _pages._templates().cache.clear()
    try:
        assert any("onerror" in said for said in complaints(empty_page(HOSTILE)))
    finally:
        _pages._templates().cache.clear()


@pytest.mark.parametrize(
    ("found", "put", "said"),
    [
        ("</main>", '<img alt="" src="https://example.org/a.png"></main>', "img src"),
        ("</main>", '<p style="color: red">a</p></main>', "p style"),
        ("</main>", "<h3>a</h3></main>", "h3 after h1"),
        ("</main>", "<script>fetch('https://example.org')</script></main>", "script-src does not fit"),
        ("</style>", "@import 'a.css';</style>", "@import"),
        ("</style>", " body { color: red }</style>", "style-src does not fit"),
        ('lang="en"', "", "no lang"),
        ("--quiet: #4a4a4a", "--quiet: #9a9a9a", "contrast quiet 2.81"),
        ("default-src 'none'".replace("'", "&#39;"), "default-src *", "default-src"),
    ],
)
def test_what_is_planted_is_found(found: str, put: str, said: str) -> None:
    html = empty_page()
    assert found in html
    assert said in complaints(html.replace(found, put))


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # the lightest grey that passes


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="title"):
        _pages.page("receipt.html", sections=[])
