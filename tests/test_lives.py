"""The engine's page names functions, and CONTRIBUTING.md modules: they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import aiodq.engine

PACKAGE = Path(aiodq.engine.__file__).parents[1]
ROOT = PACKAGE.parent


def members() -> dict[str, set[str]]:
    """Return what each class of the package has, by the class's name."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                own = found.setdefault(node.name, set())
                own |= {item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute)}
                own |= {item.name for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


def named(text: str) -> list[tuple[str, str]]:
    """Return the classes that a text names in backticks, each with a member of it or nothing."""
    return re.findall(r"`([A-Z]\w+)(?:\.(\w+))?`", text)


def test_what_the_page_of_the_engine_names_is_there() -> None:
    assert aiodq.engine.__doc__ is not None
    names, known = named(aiodq.engine.__doc__), members()
    assert len(names) > 30
    missing = [
        f"{owner}.{member}" for owner, member in names if owner not in known or member not in {"", *known[owner]}
    ]
    assert missing == []


def test_what_contributing_answers_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    answers = text.split("## Where is", 1)[1].split("\n## ", 1)[0]
    paths = re.findall(r"`(aiodq/[\w/]+\.py)`", answers)
    assert len(paths) >= 7
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    known = members()
    assert [name for name in named(answers) if name[0] not in known or name[1] not in {"", *known[name[0]]}] == []
