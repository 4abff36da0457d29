"""A process for each subject, which measures when it is asked to; this module is both ends of the pipe."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks import subjects
from benchmarks.harness import HANG, External, Sample, Setting, measure_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from benchmarks.harness import Case, Subject

__all__ = ["Workers", "loop_factory", "run_as", "serve"]

ROOT = Path(__file__).parents[1]
PATIENCE = 3 * HANG
"""Seconds for a backlog and a measurement, each of which gives up after `HANG`, and for what is around them."""

# -P: what is installed there comes first, and this checkout last, or another interpreter would run our aiodq.
OTHERS = "import sys; sys.path.append({root!r}); from benchmarks.workers import serve; serve()"
OURS = "import sys; sys.path.insert(0, {root!r}); from benchmarks.workers import serve; serve()"


def loop_factory(name: str) -> tuple[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return what makes such an event loop, and what it is called where it is not to be had."""
    if name == "uvloop":
        try:
            return name, importlib.import_module("uvloop").new_event_loop
        except ModuleNotFoundError:
            return "asyncio (uvloop: not installed)", asyncio.new_event_loop
    return name, asyncio.new_event_loop


def serve() -> None:
    """Answer each line on standard input, a JSON object that asks for a measurement, by one on standard output."""
    # What a library prints must not come between.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()


def _answer(request: dict[str, Any]) -> dict[str, object]:
    try:
        sample = _measure(**request)
    except Exception as error:  # noqa: BLE001 - one subject's failure, of whatever type, is a line in the report
        return {"error": f"{type(error).__name__}: {error}".strip().splitlines()[0]}
    return {"elapsed": sample.elapsed, "values": dict(sample.values)}


def _measure(  # what a request may say
    *, case: str, library: str, subject: str, size: int, count: int, seconds: float, directory: str, loop: str
) -> Sample:
    """Measure what is known by these names."""
    cases = importlib.import_module("benchmarks.cases").CASES
    wanted = next(each for each in cases if each.name == case)
    setting = Setting(directory=Path(directory), seconds=seconds, loop_factory=loop_factory(loop)[1])
    return measure_once(wanted, subjects.named(library, subject), size, count, setting)


def run_as(interpreter: Path, module: str, words: list[str]) -> int:
    """Run a module's `main` in another interpreter, with the aiodq that is installed there; return its exit code."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); from {module} import main; sys.exit(main(sys.argv[1:]))"
    command = [str(interpreter), "-P", "-c", code, *words]
    return subprocess.run(command, env=_environment(str(interpreter)), check=False).returncode  # noqa: S603 - see above


class Worker:
    """One process that measures one subject."""

    def __init__(self, interpreter: str | None) -> None:
        """Start it."""
        bootstrap = (OTHERS if interpreter else OURS).format(root=str(ROOT))
        command = [interpreter or sys.executable, *(["-P"] if interpreter else []), "-c", bootstrap]
        self._process = subprocess.Popen(  # noqa: S603 - a Python that the command line names
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(interpreter)
        )

    def ask(self, request: dict[str, object]) -> dict[str, Any]:
        """Return what it answers."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE):
                self.kill()
                raise TimeoutError(f"no answer within {PATIENCE:g} s")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"its process ended with {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let it end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):  # what was not sent yet, to one that is gone
            self._process.stdin.close()
        try:
            self._process.wait(HANG)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


def _environment(interpreter: str | None) -> dict[str, str]:
    """Return ours, for another interpreter without what leads it to our modules."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if interpreter is None or name not in ours}


@dataclass
class Workers:
    """All of them, each started when its subject is first measured; at the end of the block they end."""

    directory: Path
    seconds: float
    loop: str

    def __enter__(self) -> Self:
        """Have none yet."""
        self._workers: dict[str, Worker] = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End those there are."""
        for worker in self._workers.values():
            worker.close()

    def measure(self, case: Case, subject: Subject, size: int, count: int) -> Sample:
        """Measure a subject once in its process, or by its own program."""
        if isinstance(subject, External):
            with tempfile.TemporaryDirectory(prefix="aiodq-bench-", dir=self.directory) as path:
                return subject.run(case, size, count, Path(path))
        request = {
            "case": case.name,
            "library": subject.package.partition(" ")[0],
            "subject": subject.known_as or subject.name,
            "size": size,
            "count": count,
            "seconds": self.seconds,
            "directory": str(self.directory),
            "loop": self.loop,
        }
        if subject.name not in self._workers:
            self._workers[subject.name] = Worker(subject.interpreter)
        try:
            answer = self._workers[subject.name].ask(request)
        except (OSError, RuntimeError):
            self._workers.pop(subject.name).close()
            raise
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return Sample(answer["elapsed"], answer["values"])
