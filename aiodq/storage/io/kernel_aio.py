"""Linux AIO: syncs that the kernel does in the background, without a thread (`IOCB_CMD_FDSYNC` and an eventfd).

This is the interface of `io_submit(2)`, which neither Python's library nor the C library wraps. A sync does what
fdatasync does, errors included (`fs/aio.c`, since Linux 4.18). Submitting never waits for the device; the end is
signalled by the eventfd, which an event loop watches as it does a socket.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import finalize

from aiodq.storage.io.filesystem import OsFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.storage.io.filesystem import File

__all__ = ["KernelAio"]


class _Calls(NamedTuple):
    """The numbers of the system calls on one architecture."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_GENERIC: Final = _Calls(setup=0, destroy=1, getevents=4, submit=2)
_CALLS: Final = {
    "x86_64": _Calls(setup=206, destroy=207, getevents=208, submit=209),
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
}
"""64-bit little-endian machines only: the layout of `_REQUEST` is theirs."""

_MOST: Final = 64
"""Syncs in flight at once. All processes of a machine share 65,536 of them (`/proc/sys/fs/aio-max-nr`)."""

_STATUS: Final = "/proc/self/status"
"""Where Linux shows, among other things, which process traces this one."""

_FDSYNC: Final = 3
_TELL: Final = 1
_REQUEST: Final = struct.Struct("<QIIHhiQQqQII")
"""`struct iocb`: number, key, flags, operation, priority, descriptor, buffer, bytes, position, flags, eventfd."""

_EVENT: Final = struct.Struct("<QQqq")
"""`struct io_event`: number, request, result, second result."""

_SPARE: Final[list[int]] = []
"""This process's contexts that nobody uses, with nothing in flight. To destroy one takes an RCU grace period, some 30
ms, for which a store that is closed would hold up its event loop, and keep its directory from the next owner."""


class _InFlight:
    """The number of syncs in flight, including ended ones whose end was not read yet.

    Attributes:
        sure: whether the count is right. Ctrl-C may end a call before it has counted what the system did.
    """

    __slots__ = ("count", "sure")

    def __init__(self) -> None:
        self.count = 0
        self.sure = True


class KernelAio:
    """The syncs in flight of one thread.

    Attributes:
        eventfd: a descriptor that becomes readable once a sync has ended.
        number: the number of the last sync begun.
    """

    def __init__(self) -> None:
        """Set up an AIO context.

        Raises:
            OSError: the system has no AIO, forbids it, or has no context left.
        """
        calls = _CALLS.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
        if calls is None or not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._calls = calls
        # None of these calls blocks, so the GIL is kept: releasing and retaking it would cost more.
        self._call = _syscall(ctypes.PyDLL)
        self._context = ctypes.c_ulong(0)
        with suppress(IndexError):
            self._context.value = _SPARE.pop()
        if not self._context.value and self._call(calls.setup, _MOST, ctypes.byref(self._context)) < 0:
            raise _error()
        try:
            self.eventfd: int = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            _SPARE.append(self._context.value)
            raise
        self._in_flight = _InFlight()
        self._end = finalize(self, _give_back, calls, self._context.value, self.eventfd, self._in_flight, os.getpid())
        self._end.atexit = False  # the kernel releases the context of a process that ends
        self.number: int = 0
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._events = ctypes.create_string_buffer(_EVENT.size * _MOST)
        self._no_time = ctypes.create_string_buffer(16)
        self._untold: list[tuple[int, int]] = []

    def submit(self, file: File) -> None:
        """Begin a sync, and set `number` to its number. The file may be closed at once: the kernel holds a reference.

        Raises:
            OSError: no sync was begun: too many are in flight, or the file is not an `OsFile`, for instance.
        """
        if not isinstance(file, OsFile):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        in_flight, number = self._in_flight, self.number + 1
        _REQUEST.pack_into(
            self._request, 0, number, 0, 0, _FDSYNC, 0, file.descriptor, 0, 0, 0, 0, _TELL, self.eventfd
        )  # fmt: skip
        sure, in_flight.sure = in_flight.sure, False
        # INVARIANT: wherever Ctrl-C ends this, no later sync gets this number: one's end is not taken for another's.
        self.number = number
        if self._call(self._calls.submit, self._context, 1, self._requests) < 0:
            error = _error()
            self.number, in_flight.sure = number - 1, sure
            raise error
        in_flight.count += 1
        in_flight.sure = sure

    def ended(self) -> list[tuple[int, int]]:
        """Return the numbers of the syncs that have ended since the last call, each with its errno, 0 for none.

        Raises:
            OSError: the system refused.
        """
        in_flight, ended = self._in_flight, self._untold
        sure, in_flight.sure = in_flight.sure, False
        least, most, count = ctypes.c_long(0), ctypes.c_long(_MOST), _MOST
        try:
            os.eventfd_read(self.eventfd)
            # The eventfd does not signal again for what is left now, and more may have ended than fit in one call.
            while count == _MOST:
                count = self._call(self._calls.getevents, self._context, least, most, self._events, self._no_time)
                if count < 0:
                    break
                events = _EVENT.iter_unpack(self._events.raw[: count * _EVENT.size])
                ended += [(number, -result if result < 0 else 0) for number, _, result, _ in events]
                in_flight.count -= count
        except BlockingIOError:
            count = 0  # nothing has ended
        except BaseException as cause:
            # INVARIANT: what Ctrl-C interrupts is done again by the next call, for which the eventfd signals.
            if not isinstance(cause, OSError):
                os.eventfd_write(self.eventfd, 1)
            raise
        if count < 0:
            raise _error()
        in_flight.sure = sure
        self._untold = []
        return ended

    @staticmethod
    def is_watched() -> bool:
        """Return whether the process is traced, or functions were put before the C library's; False if unknown."""
        if os.environ.get("LD_PRELOAD"):
            return True
        try:
            with open(_STATUS, "rb") as file:
                status = file.read()
        except OSError:
            return False
        _, _, traced = status.partition(b"TracerPid:")
        return traced.split(maxsplit=1)[:1] not in ([], [b"0"])

    def close(self) -> None:
        """Give the context back, once every sync has ended. Repeating it does nothing."""
        self._end()
        self._context.value = 0


@cache
def _syscall(library: type[ctypes.CDLL]) -> Callable[..., int]:
    """Return `syscall(2)`, which releases the GIL or not as such a library does.

    ctypes makes a class for each library that it loads: a store that is opened need not wait for that.
    """
    call = library(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call


def _error() -> OSError:
    """Return the error of the system call that was made last."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def _give_back(calls: _Calls, context: int, eventfd: int, in_flight: _InFlight, pid: int) -> None:
    """Wait for the syncs in flight, and keep the context for the next store that needs one."""
    os.close(eventfd)
    if os.getpid() != pid:
        return  # a forked child has no part in the context
    # These calls wait, and so release the GIL.
    call = _syscall(ctypes.CDLL)
    if not in_flight.sure:
        call(calls.destroy, ctypes.c_ulong(context))  # the kernel knows what it has to wait for
        return
    events = ctypes.create_string_buffer(_EVENT.size * _MOST)
    while in_flight.count:
        count = call(calls.getevents, ctypes.c_ulong(context), ctypes.c_long(1), ctypes.c_long(_MOST), events, None)
        if count >= 0:
            in_flight.count -= count
        elif ctypes.get_errno() != errno.EINTR:
            return
    _SPARE.append(context)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SPARE.clear)
