"""The house stays one that a newcomer reads: short files, short functions."""

import ast
from pathlib import Path

import privypurse

ROOT = Path(privypurse.__file__).parents[2]
LONGEST_FILE, LONGEST_FUNCTION = 400, 60


def too_long(source):
    """The file itself, or functions in it, docstrings included, that are longer than is allowed."""
    found = [f"{source.count(chr(10))} lines"] if source.count("\n") > LONGEST_FILE else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                found.append(f"{node.name}: {lines} lines")
    return found


def test_no_file_and_no_function_is_long():
    found = {}
    for folder in ("src", "reproductions"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if long := too_long(path.read_text("utf-8")):
                found[str(path.relative_to(ROOT))] = long
    assert not found


def test_what_is_long_is_found():
    assert too_long("x = 1\n" * LONGEST_FILE) == []
    assert too_long("x = 1\n" * (LONGEST_FILE + 1)) == ["401 lines"]
    body = "    x = 1\n" * (LONGEST_FUNCTION - 1)
    assert too_long("def short():\n" + body) == []
    assert too_long("def long():\n    # one more\n" + body) == ["long: 61 lines"]
