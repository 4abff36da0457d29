"""Processes that tests start and kill: how they are run, where they end themselves, and what they noted until then.

Imports little: most of a short child's life is its imports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from aiodq.testing import WrappedFileSystem

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aiodq.testing import Call

T = TypeVar("T")

__all__ = [
    "ROOT",
    "WATCHDOG",
    "Killer",
    "environment",
    "kill_group",
    "kill_one",
    "killed_at_last",
    "killer",
    "note",
    "open_notes",
    "read_notes",
    "reserved_port",
    "run_until_killed",
    "when_to_die",
]

ROOT: Final = Path(__file__).parents[1]
WATCHDOG: Final = 60.0
"""Seconds after which something that waits is taken for hanging. Never reached by what works."""

_MOMENTS: Final = ("before", "amid", "after")
_CHANGES: Final = frozenset(
    {"create", "write", "truncate", "sync", "make_directory", "rename", "remove", "sync_directory"}
)


# --- seen from the test


@contextmanager
def reserved_port() -> Iterator[int]:
    """Give a port that a server of a test may listen at, and that the system gives nobody else meanwhile.

    What is bound and does not listen leaves the port to who asks for an address to be reused, as servers do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


def environment(**more: str) -> dict[str, str]:
    """Return what a child needs to find this checkout, installed or not."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **more}


@contextmanager
def killed_at_last(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: Any = None,
    stderr: Any = None,
    text: bool = False,
    group: bool = False,
) -> Iterator[subprocess.Popen[Any]]:
    """Run a command in the checkout; in the end it is killed, with all its group where it has its own."""
    with subprocess.Popen(
        list(map(str, command)),
        cwd=ROOT,
        env=environment() if env is None else env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=text,
        start_new_session=group,
    ) as child:
        try:
            yield child
        finally:
            if group:
                kill_group(child)
            else:
                child.kill()


def kill_one(pid: int) -> bool:
    """Kill a process that need not be one of ours; return whether it was there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def kill_group(child: subprocess.Popen[Any]) -> None:
    """Kill a process and all that it started, as far as they are there, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def when_to_die(rng: random.Random, few: int) -> int:
    """Draw the call of the file system at which a child kills itself, early or late; 0: it is killed by the clock."""
    return rng.choice((0, rng.randint(1, few), rng.randint(1, 25 * few)))


def run_until_killed(
    module: str,
    *arguments: object,
    calls: int,
    seconds: float,
    begun: Callable[[], bool] = lambda: True,
) -> None:
    """Run a module that never ends: until it kills itself at a call, or so many seconds after it has `begun`."""
    command = [sys.executable, "-m", module, *map(str, arguments), str(calls)]
    with killed_at_last(command, stderr=subprocess.PIPE) as child:
        if calls:
            child.wait(WATCHDOG)
        else:
            end = time.monotonic() + WATCHDOG
            while child.poll() is None and not begun() and time.monotonic() < end:
                time.sleep(0.001)
            time.sleep(seconds)
        child.kill()
        assert child.stderr is not None
        assert child.wait() == -signal.SIGKILL, child.stderr.read().decode()


def read_notes(path: Path) -> list[list[Any]]:
    """Return what a child noted. The last line may have been cut by the kill."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


# --- seen from the child


def open_notes(path: str) -> int:
    """Open a file of notes."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(notes: int, *what: object) -> None:
    """Note something for good: one line of JSON, written by one `write`, survives the kill."""
    os.write(notes, json.dumps(what).encode() + b"\n")


def killer(calls: int, rng: random.Random) -> Killer | None:
    """Return the file system for what `when_to_die` drew."""
    return Killer(calls, rng.choice(_MOMENTS)) if calls else None


class Killer(WrappedFileSystem):
    """Kills this very process at its n-th call that changes something: before it, in the middle of it, or after."""

    def __init__(self, calls: int, moment: str) -> None:
        super().__init__()
        self._calls = calls
        self._moment = moment

    def passing(self, call: Call, path: str, perform: Callable[..., T], *args: Any) -> T:
        self._calls -= call in _CHANGES
        if self._calls or call not in _CHANGES:
            return super().passing(call, path, perform, *args)
        if self._moment == "before" and call != "create":
            kill()
        if self._moment == "amid" and call == "write":
            data = b"".join(args[0])
            args = ([data[: len(data) // 2]], args[1])
        perform(*args)
        return kill()


def kill() -> NoReturn:
    """End here."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")
