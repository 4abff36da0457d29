"""Which tests share a Spark session, and which process runs what, and when, where several share a run."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = ["import_in_turns", "place_in_a_shared_run", "scheduling", "shares_a_session"]

ROOT: Final = Path(__file__).parents[1]
_ASKED_FOR: Final = re.compile(r"\bspark: SparkSession\b")


def shares_a_session(nodeid: str) -> bool:
    """Return whether a test is of a module that asks for the session of `tests/spark/conftest.py`."""
    return _asks(nodeid.split("::", 1)[0])


def place_in_a_shared_run(nodeid: str) -> int:
    """Return what tests of a run that several processes share are sorted by.

    Long pieces of work begin first, or at the end one process is still busy when the others have nothing left. The
    longest one is all that shares a session; then come the other modules of Spark, some of them minutes long.
    """
    return 0 if shares_a_session(nodeid) else 1 if nodeid.startswith("tests/spark/") else 2


@cache
def _asks(module: str) -> bool:
    path = ROOT / module
    return path.parent.name == "spark" and _ASKED_FOR.search(path.read_text(encoding="utf-8")) is not None


def scheduling(config: pytest.Config, log: object) -> Any:
    """Return what hands out tests by module, as xdist's `--dist loadfile` does, but all that share a session as one."""
    found = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    by_module = found._split_scope
    found._split_scope = lambda nodeid: "tests/spark" if shares_a_session(nodeid) else by_module(nodeid)
    return found


def import_in_turns(config: pytest.Config) -> None:
    """Import the modules of tests where several processes share a run of all, each beginning with another part.

    In a new checkout that is mostly compiling, by Python and by what rewrites pytest's asserts. What one process has
    compiled is on disk for the others, which would else compile the same at the same time.
    """
    shared = getattr(config, "workerinput", None)
    if shared is None or [str(ROOT / given) for given in config.args] != [str(ROOT / "tests")]:
        return
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    first = len(found) * int(shared["workerid"].removeprefix("gw")) // shared["workercount"]
    for path in (*found[first:], *found[:first]):
        # One that cannot be imported, or is skipped as a whole, says so when pytest collects it.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
