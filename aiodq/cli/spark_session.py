"""A Spark session for one command: its progress on a terminal, its Ctrl-C, and its errors in few words."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from rich.console import Console

from aiodq.cli.exits import WRONG, CommandError
from aiodq.cli.show import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from pyspark.sql import SparkSession
    from rich.status import Status


__all__ = ["pipelines", "session"]

_SAID: Final = 3
"""Lines of what a Java said that could not be started."""

_ASIDE: Final = re.compile(r"at |\.\.\. |WARNING: |\S+ \S+ WARN ")
"""How a line begins that is of Java's stack, or a warning."""
_THROWN: Final = ": "
"""How a line of py4j's begins that says what Java threw; the one before says which call did."""

_CONDITION: Final = re.compile(r"\[[A-Z][A-Z_.]{5,}\].*")
"""How Spark names what went wrong: `[PATH_NOT_FOUND] …`."""
_STOPPED: Final = "on a stopped SparkContext"
"""What Java says of each call to a session that has ended by itself."""


def pipelines() -> ModuleType:
    """Return the ready-made jobs."""
    from aiodq.spark import pipelines  # noqa: PLC0415 - an extra that may be missing

    return pipelines


@contextmanager
def session(
    master: str, conf: list[str] | None, what: str, *, verbose: bool
) -> Iterator[tuple[SparkSession, Callable[[int], None]]]:
    """Run Spark for a job; on a terminal, say how far it has come."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 - an extra without types
    from pyspark.errors import PySparkException  # noqa: PLC0415 - likewise
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - likewise

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        # They would tell of an error with Java's stack, before it is told here.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)

    settings: dict[str, str] = {}
    for setting in conf or ():
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise CommandError(f"--conf takes KEY=VALUE, not {setting!r}")
        settings[key] = value
    if verbose:
        settings.setdefault("spark.log.level", "WARN")
    own = os.fdopen(os.dup(sys.stderr.fileno()), "w")
    status = Console(file=own).status(f"{what}: starting Spark")
    if sys.stderr.isatty():
        status.start()
    spark: SparkSession | None = None
    over = threading.Event()
    try:
        with _ctrl_c_noted(), nullcontext() if verbose else _java_unheard():
            spark = pipelines().start_session(master, settings, f"aiodq {what}")
        status.update(what)
        with _ctrl_c_noted() as came:
            told = partial(_tell, status, what)
            watcher = threading.Thread(target=_watch, args=(spark, over, came, told))
            watcher.start()
            try:
                yield spark, lambda rows: told(counted(rows, "message"))
            finally:
                over.set()
                watcher.join()
    except (PySparkException, Py4JJavaError) as error:
        raise CommandError(_cause(error), WRONG) from error
    finally:
        status.stop()
        own.close()
        if spark is not None:
            spark.stop()


def _tell(status: Status, what: str, text: str) -> None:
    status.update(f"{what}: {text}")


@contextmanager
def _ctrl_c_noted() -> Iterator[list[int]]:
    """Have a Ctrl-C count at the end, and give where it is noted until then.

    One that broke off the start of Java would leave it behind: pyspark gives up waiting for it to say how it is
    reached, and a Java that cannot say so waits for good. One that broke off a call of Java's would spoil the
    connection to it, on which pyspark's own handler asks it to end its jobs.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)

    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield came
        return
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, note)
    try:
        yield came
    except Exception:
        # What was broken off has failed, in one way or another.
        if not came:
            raise
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextmanager
def _java_unheard() -> Iterator[None]:
    """Have a Java that is started here write its warnings, for all its life, where nobody sees them.

    So do the workers that it starts: one whose rows nobody wants any more ends with a traceback.

    Raises:
        CommandError: it could not be started; with the last that it wrote.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - an extra that may be missing

    number = sys.stderr.fileno()
    sys.stderr.flush()
    heard = os.dup(number)
    with TemporaryFile() as unheard:
        os.dup2(unheard.fileno(), number)
        try:
            yield
        except PySparkRuntimeError as error:
            unheard.seek(0)
            lines = [line.strip() for line in unheard.read().decode(errors="replace").splitlines()]
            said = [line for line in lines if line and not _ASIDE.match(line)]
            raise CommandError(f"{_cause(error)} {' '.join(said[-_SAID:])}", WRONG) from error
        finally:
            os.dup2(heard, number)
            os.close(heard)


def _watch(session: SparkSession, over: threading.Event, came: list[int], tell: Callable[[str], None]) -> None:
    """Tell of the tasks of the stages that run; at a Ctrl-C, end the session, and with it what waits for Java."""
    tracker = session.sparkContext.statusTracker()
    while not over.wait(0.3):
        if came:
            for running in session.streams.active:
                running.stop()  # it would outlive its session, for as long as nothing comes
            session.stop()
            return
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        found = [stage for stage in stages if stage is not None]
        if found:
            done, tasks = sum(s.numCompletedTasks for s in found), sum(s.numTasks for s in found)
            tell(f"{done} of {counted(tasks, 'task')}")


def _cause(error: Exception) -> str:
    """Return what went wrong in a few words, out of Spark's many: the last error of this side, or the first line.

    Java's own errors begin with where they were noticed; what Spark says of them has the name of a condition.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("aiodq.errors.")]
    named = [found[0] for line in lines if (found := _CONDITION.search(line))]
    thrown = [line.removeprefix(_THROWN) for line in str(error).splitlines() if line.startswith(_THROWN)]
    lines = named or thrown or lines
    if not own and _STOPPED in str(error):
        return "Spark ended before the job did: its master was not reached, or is gone; --verbose shows more"
    return own[-1].removeprefix("aiodq.errors.") if own else lines[0] if lines else type(error).__name__
