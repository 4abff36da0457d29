"""Which event loops there are, and which tests run on each of them. Imports nothing that a child process need not."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

__all__ = ["BOTH", "LOOPS", "loops_for", "run_on"]


def _loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if sys.platform == "win32":
        return {"asyncio": asyncio.new_event_loop}
    import uvloop  # noqa: PLC0415 - there is none on Windows

    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


LOOPS: Final = _loops()

BOTH: Final = frozenset({"queue", "channels", "shared", "transactions", "system", "testing"})
"""The directories of tests in which the loop matters.

They try what the engine does with tasks, futures, timers, threads and cancellation, and the loops differ in when they
run callbacks. Elsewhere a loop only carries the test to code that does not know it (files, options, texts, Spark, a
command line), or that these directories try on both: there asyncio's does. A mark on a test, or on a module by
`pytestmark`, says otherwise: `@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])`.
"""


def loops_for(directory: str) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops of the tests in a directory of `tests`."""
    return LOOPS if directory in BOTH else {"asyncio": LOOPS["asyncio"]}


def run_on(loop: str, main: Coroutine[Any, Any, Any]) -> Any:
    """As `asyncio.run`, on that kind of loop."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main)
