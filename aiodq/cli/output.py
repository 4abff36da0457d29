"""The console for the output of commands and their help, and an output stream that loses nothing."""

from __future__ import annotations

import errno
import io
import re
import select
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer

__all__ = ["Output", "check_read", "printable", "read_or_not", "whole_output"]

_STEERING: Final = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal, or turn the direction of what comes after them; not a newline, nor a tab."""


def printable(text: str) -> str:
    """Return text with control characters of terminals escaped, as in JSON, so that JSON stays JSON."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Output(Console):
    """A console that escapes control characters in text, in tables too, and raises if the pipe is closed."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:  # noqa: ANN401 - rich's, handed on
        """Print text without rich's line breaks: paths stay whole in a pipe, and a terminal wraps lines itself."""
        if soft_wrap is None:
            soft_wrap = all(isinstance(each, (str, Text)) for each in objects)
        super().print(*objects, soft_wrap=soft_wrap, **how)

    def render_str(self, text: str, **how: Any) -> Text:  # noqa: ANN401 - rich's, handed on
        """Render text with control characters escaped."""
        return super().render_str(printable(text), **how)

    def on_broken_pipe(self) -> None:
        """Raise the error that is being handled.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError


@contextmanager
def read_or_not() -> Iterator[None]:
    """Print in the block what a command has found; if the reader closes the pipe, go on to the exit code.

    The exit code is what a script asks `aiodq verify … | head` for, by `pipefail`.
    """
    with suppress(BrokenPipeError):
        yield
        sys.stdout.flush()


def check_read() -> None:
    """Raise if nobody can read standard output any more, which a command that waits would notice only as it writes.

    Raises:
        BrokenPipeError: the other end of the pipe, the socket or the terminal is closed.
    """
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are told in any case
    if any(found & (select.POLLERR | select.POLLHUP) for _, found in poll.poll(0)):
        raise BrokenPipeError


class _Whole(io.RawIOBase):
    """An unbuffered file whose writes are complete, however little the system accepts at a time."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw

    def write(self, data: ReadableBuffer, /) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            taken = self._raw.write(left)
            if taken is None:
                raise BlockingIOError(errno.EAGAIN, "standard output does not block, and takes no more")
            left = left[taken:]
        return size

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()


@contextmanager
def whole_output() -> Iterator[None]:
    """Lose no output if Python is told not to buffer, as by `PYTHONUNBUFFERED` in many containers.

    Python then assumes that each write is complete. But a pipe accepts only a part if the process is stopped and
    continued, by Ctrl-Z and `fg` or because the machine is suspended.
    """
    plain = sys.stdout
    raw = getattr(plain, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        yield
        return
    whole = io.TextIOWrapper(_Whole(raw), plain.encoding, plain.errors, write_through=True)  # type: ignore[type-var]  # typeshed wants a name and a read() of it, and it is only written to
    with redirect_stdout(whole):
        yield
