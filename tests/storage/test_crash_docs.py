"""The commit points that the docstring of `aiodq.storage` numbers are marked in the code, there and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import aiodq.storage

PACKAGE = Path(aiodq.storage.__file__).parents[1]
POINT = re.compile(r"^(\d+)\. \*(.+?)\*(.*?)(?=^\d+\. |^$)", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"# CRASH: (\d+)\.")


def documented() -> dict[int, set[str]]:
    """Return which functions the docstring names for each commit point."""
    assert aiodq.storage.__doc__ is not None
    found = {}
    for number, _, text in POINT.findall(aiodq.storage.__doc__):
        (places,) = re.findall(r"\(((?:`[\w.]+`[,\s]*)+)\)\s*$", text.strip())
        found[int(number)] = set(re.findall(r"`([\w.]+)`", places))
    return found


def marked() -> dict[int, set[str]]:
    """Return in which functions the code marks each commit point."""
    found: dict[int, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for line, text in enumerate(source.splitlines(), 1):
            for number in MARK.findall(text):
                found.setdefault(int(number), set()).add(function_at(ast.parse(source), line))
    return found


def function_at(tree: ast.AST, line: int) -> str:
    """Return the name of the function around a line, with its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.lineno <= line <= (member.end_lineno or 0):
                    return f"{node.name}.{member.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            return node.name
    return "module"


def test_the_points_are_numbered_without_a_gap() -> None:
    points = documented()
    assert list(points) == list(range(1, len(points) + 1))
    assert len(points) >= 8


def test_every_documented_point_is_marked_where_it_says() -> None:
    marks = marked()
    missing = {number: places - marks.get(number, set()) for number, places in documented().items()}
    assert not any(missing.values()), missing


def test_every_mark_is_documented() -> None:
    assert set(marked()) == set(documented())


def test_every_crash_comment_that_has_a_number_is_recognised() -> None:
    for path in PACKAGE.rglob("*.py"):
        for text in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"CRASH:?\s*#?\d", text) or MARK.search(text), text
