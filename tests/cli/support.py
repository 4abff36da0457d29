"""Running the command line as its users do: as a process, with files and pipes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from aiodq.cli import main
from aiodq.opening import open as open_store
from aiodq.options import StoreOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "aiodq.cli"]


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which the checkout is importable, and nothing pretends to be a terminal."""
    kept = {name: text for name, text in os.environ.items() if name not in {"FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"}}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[bytes]:
        """What was written, line by line."""
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        """What was written, as one JSON document."""
        return json.loads(self.out)


class Short(io.RawIOBase):
    """A file that takes no more than a little at a time, as a pipe does when its writer was stopped and continued."""

    def __init__(self, most: int | None) -> None:
        self.taken = b""
        self._most = most

    def write(self, data: bytes, /) -> int | None:  # type: ignore[override]  # a raw file may give None, and nothing but bytes comes here
        if self._most is None:
            return None
        self.taken += bytes(data[: self._most])
        return len(data[: self._most])

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False


def aiodq(*arguments: str | Path, stdin: bytes = b"") -> Done:
    """Run one command to its end: in this process, as starting another takes longer, but on descriptors as there."""
    with TemporaryFile() as source, TemporaryFile() as out, TemporaryFile() as err:
        source.write(stdin)
        source.seek(0)
        with _standard_streams(source, out, err):
            code = main(list(map(str, arguments)))
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read().decode())


def read_by_nobody(*arguments: str | Path) -> tuple[int, bytes]:
    """Run a command into a pipe whose other end is closed; return its exit code and what it says on standard error."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*PROGRAM, *arguments], stdout=writer, stderr=subprocess.PIPE, env=environment(), check=False
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


def on_a_terminal(*arguments: str | Path) -> bytes:
    """Run one command to its end, which is to be a good one, on a terminal; return what that is told."""
    parent, child = pty.openpty()
    with open(parent, "rb", buffering=0) as terminal:
        command = [*PROGRAM, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment(TERM="xterm"))
        os.close(child)
        shown = b""
        with suppress(OSError):  # how a terminal says that nobody is left on the other side
            while data := terminal.read(65536):
                shown += data
        assert process.wait() == 0
    return shown


@contextmanager
def _standard_streams(*files: IO[bytes]) -> Iterator[None]:
    """Let the descriptors 0 to 2 be these files for a while, and Python's streams be on them."""
    streams = sys.stdin, sys.stdout, sys.stderr
    kept = [os.dup(number) for number in range(3)]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, "rw"[number > 0], closefd=False)  # noqa: SIM115 - the descriptors are not ours to close
            for number in range(3)
        )
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


def ok(*arguments: str | Path, stdin: bytes = b"") -> Done:
    """Run one command that is to succeed without complaint."""
    done = aiodq(*arguments, stdin=stdin)
    assert (done.code, done.err) == (0, "")
    return done


def fill(store: Path, topic: str, bodies: Iterable[bytes], *, segment_bytes: int = 1 << 20) -> None:
    """Put messages, each by itself, into a topic that has a channel `default`."""

    async def run() -> None:
        async with open_store(store, StoreOptions(segment_bytes=segment_bytes)) as opened:
            topic_ = opened.topic(topic)
            topic_.channel("default")
            for body in bodies:
                await topic_.put(body)

    asyncio.run(run())


class Running:
    """A command under way, killed at the end if it is still there.

    Attributes:
        process: the process.
        out: its standard output.
    """

    def __init__(self, *arguments: str | Path, stdin: int | None = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert self.process.stdout is not None
        self.out: IO[bytes] = self.process.stdout

    def __enter__(self) -> Running:  # noqa: PYI034 - never subclassed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def line(self) -> bytes:
        """Wait for a line of output; empty at the end."""
        return self.out.readline()

    def ended(self, signal: int | None = None) -> Done:
        """Send a signal, if one is given, and wait for the end."""
        if signal is not None:
            self.process.send_signal(signal)
        out = self.out.read()  # not by `communicate`, which knows nothing of what `line` has read ahead
        assert self.process.stderr is not None
        err = self.process.stderr.read()
        return Done(self.process.wait(), out, err.decode())


_OWNER = """
import asyncio, sys
from aiodq.opening import open as open_store

async def main(path, name):
    async with open_store(path) as store:
        topic = store.topic(name)
        channel = topic.channel("default")
        await topic.settle_in()
        print("open", flush=True)
        held = []
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            word, _, rest = line.rstrip(b"\\n").partition(b" ")
            if word == b"put":
                await topic.put(rest)
            elif word == b"ack":
                await (await channel.get()).ack()
            elif word == b"reject":
                await (await channel.get()).reject()
            elif word == b"hold":
                held.append(await channel.get())
            print("done", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class Owner:
    """Another process that has a store open and does what it is told: `put …`, `ack`, `reject` or `hold`."""

    def __init__(self, store: Path, topic: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(store), topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        assert self._out.readline() == b"open\n"

    def __enter__(self) -> Owner:  # noqa: PYI034 - never subclassed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()
        self.process.wait()
        self._out.close()

    def does(self, command: bytes) -> None:
        """Have it do something and wait until it is done."""
        self._in.write(command + b"\n")
        self._in.flush()
        assert self._out.readline() == b"done\n"


def only_segment(store: Path, topic: str) -> Path:
    """Return the one segment of a topic."""
    (path,) = (store / topic).glob("*.seg")
    return path


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
