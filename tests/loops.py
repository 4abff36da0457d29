"""Which event loops there are, and which tests run on each of them. Imports nothing that a child process need not."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

__all__ = ["BOTH", "LOOPS", "OF_FILES", "loops_for", "run_on"]


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

OF_FILES: Final = frozenset(
    {
        "channels/test_cramped.py",
        "channels/test_figures.py",
        "channels/test_read_ahead.py",
        "channels/test_requeue.py",
        "channels/test_shared_log.py",
        "queue/test_diskqueue_intent.py",
        "queue/test_failures.py",
        "queue/test_kept_options.py",
        "queue/test_looking.py",
        "queue/test_names.py",
        "queue/test_newest.py",
        "queue/test_open.py",
        "queue/test_page_cache.py",
        "queue/test_peer_issues.py",
        "queue/test_purge.py",
        "queue/test_reading.py",
        "queue/test_restart.py",
        "queue/test_retention.py",
        "system/test_backup.py",
        "system/test_flat.py",
        "transactions/test_file.py",
        "transactions/test_origins.py",
        "transactions/test_recovery.py",
    }
)
"""The modules in those directories that ask what is on disk, in which segments, by which options, or count steps.

They run on uvloop only in exhaustive runs. How each loop runs what the engine has it do (batches and their syncs, work
in threads, waits, timers, time-outs, cancellation, closing, loops that end) the modules beside them try on both.
"""


def loops_for(directory: str) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops of the tests in a directory of `tests`."""
    return LOOPS if directory in BOTH else {"asyncio": LOOPS["asyncio"]}


def run_on(loop: str, main: Coroutine[Any, Any, Any]) -> Any:
    """As `asyncio.run`, on that kind of loop."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main)
