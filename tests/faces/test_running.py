"""`aiodq.run`: a program on the fastest loop there is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

import aiodq


def test_a_program_runs_on_uvloop_and_its_result_comes_back(tmp_path: Path) -> None:
    async def main() -> bytes:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        async with aiodq.open_queue(tmp_path / "jobs") as jobs:
            await jobs.put(b"x")
            return (await jobs.get()).body

    assert aiodq.run(main()) == b"x"


def test_without_uvloop_it_runs_on_asyncios_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> str:
        return type(asyncio.get_running_loop()).__module__

    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert aiodq.run(main()).startswith("asyncio")


def test_what_the_program_raises_is_raised() -> None:
    async def main() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        aiodq.run(main())


def test_a_function_that_was_not_called_is_told_so() -> None:
    async def service() -> None: ...

    wrong: Any = service
    with pytest.raises(TypeError, match=r"aiodq.run takes a coroutine, not .*: write aiodq.run\(service\(\)\)"):
        aiodq.run(wrong)


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_within_a_loop_it_says_what_to_write_instead() -> None:
    async def main() -> None: ...

    with pytest.raises(aiodq.WrongContextError, match=r"write await main\(\)"):
        aiodq.run(main())


def test_within_trio_it_says_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> str:
        return "ran"

    def elsewhere() -> None:
        raise RuntimeError("must be called from async context")

    trio = SimpleNamespace(lowlevel=SimpleNamespace(current_trio_token=object))
    monkeypatch.setitem(sys.modules, "trio", trio)
    with pytest.raises(aiodq.WrongContextError, match=r"trio.* aiodq\.sync"):
        aiodq.run(main())
    trio.lowlevel.current_trio_token = elsewhere
    assert aiodq.run(main()) == "ran", "in one of trio's threads, or before trio runs"


def test_import_aiodq_is_enough_for_aiodq_sync(tmp_path: Path) -> None:
    program = """
import sys, aiodq
assert "aiodq.sync" not in sys.modules
with aiodq.sync.open_queue(sys.argv[1]) as jobs:
    jobs.put(b"x")
    print(jobs.get().body)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "jobs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "b'x'\n"


def test_it_is_imported_where_modules_have_no_files(tmp_path: Path) -> None:
    """As of an executable that has all modules within."""
    program = """
import importlib.abc, importlib.util, pathlib, sys

class Within(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def __init__(self, root):
        files = {path.relative_to(root).with_suffix("").parts: path.read_text() for path in root.glob("aiodq/**/*.py")}
        self.sources = {".".join(name).removesuffix(".__init__"): text for name, text in files.items()}
        self.packages = {".".join(name[:-1]) for name in files}

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in self.sources else None

    def get_source(self, name):
        return self.sources[name]

    def is_package(self, name):
        return name in self.packages

sys.meta_path.insert(0, Within(pathlib.Path(sys.argv[1])))
sys.frozen = True
import aiodq
assert not hasattr(aiodq, "__file__")
with aiodq.sync.open_queue(sys.argv[2], mode="shared") as jobs:
    jobs.put(b"x")
    print(jobs.get().body, aiodq.__compiled__)
"""
    root = Path(aiodq.__file__).parents[1]
    command = [sys.executable, "-c", program, str(root), str(tmp_path / "jobs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "b'x' False\n"


def test_a_name_that_is_not_there_is_told_as_python_tells_it() -> None:
    name = "opne"
    with pytest.raises(AttributeError, match="module 'aiodq' has no attribute 'opne'") as missing:
        getattr(aiodq, name)
    assert (missing.value.name, missing.value.obj) == ("opne", aiodq)
