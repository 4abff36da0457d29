"""Every Python snippet of the README runs, and prints what the comments behind its prints say."""

from __future__ import annotations

import ast
import inspect
import re
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import pytest

import aiodq
from tests.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

README: Final = ROOT / "README.md"
PAGES: Final = (
    "aiodq/ERRORS.md",
    "aiodq/spark/README.md",
    "aiodq/spark/CLUSTERS.md",
    "aiodq/testing/README.md",
    "benchmarks/README.md",
    "tests/README.md",
)
EXPECTED: Final = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


def blocks(page: Path = README) -> list[tuple[int, str]]:
    """Return a page's snippets with the number of lines before each."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


async def run(line: int, source: str, names: dict[str, Any], page: Path = README) -> None:
    """Run a snippet as `python -m asyncio` would; a traceback shows the page's own lines."""
    code = compile("\n" * line + source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = FunctionType(code, names)()
    if inspect.iscoroutine(result):
        await result


async def test_the_first_snippet_works_off_its_job_and_ends_at_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    resized: list[bytes] = []

    def resize(body: bytes) -> None:
        resized.append(body)
        names["jobs"].shutdown()

    names: dict[str, Any] = {"aiodq": aiodq, "resize": resize}
    await run(*blocks()[0], names)
    assert resized == [b"resize cat.png"]
    assert aiodq.open_reader("jobs").topic("queue").stats().channels["default"].depth == 0


async def test_the_tour_runs_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for line, source in blocks()[1:]:
        await run(line, source, names)
        assert capsys.readouterr().out.splitlines() == EXPECTED.findall(source), f"README.md:{line}"
    assert len(blocks()) > 5


async def test_the_page_on_testing_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "aiodq/testing/README.md"
    [(line, source)] = blocks(page)
    await run(line, source, {}, page)
    assert capsys.readouterr().out.splitlines() == EXPECTED.findall(source)


def test_everything_the_readme_links_to_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text)
    assert "examples/fastapi_orders.py" in targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
    anchors = {re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-") for line in text.splitlines()}
    assert [anchor for anchor in re.findall(r"\]\(#([^)]+)\)", text) if anchor not in anchors] == []


@pytest.mark.parametrize("page", PAGES)
def test_everything_a_page_links_to_is_there(page: str) -> None:
    here = ROOT / page
    assert page in README.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", here.read_text(encoding="utf-8"))
    assert [target for target in targets if not (here.parent / target).exists()] == []


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 400


def test_every_error_is_on_the_page_of_errors() -> None:
    text = (ROOT / "aiodq/ERRORS.md").read_text(encoding="utf-8")
    errors = {"QueueEmpty", "QueueFull", "QueueShutDown", *(name for name in aiodq.__all__ if name.endswith("Error"))}
    assert {name for name in errors if f"`{name}`" not in text} == set()
