"""Which tests share a Spark session, and that one process runs them all where several share a run."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytest

__all__ = ["scheduling", "shares_a_session"]

ROOT: Final = Path(__file__).parents[1]
_ASKED_FOR: Final = re.compile(r"\bspark: SparkSession\b")


def shares_a_session(nodeid: str) -> bool:
    """Return whether a test is of a module that asks for the session of `tests/spark/conftest.py`."""
    return _asks(nodeid.split("::", 1)[0])


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
