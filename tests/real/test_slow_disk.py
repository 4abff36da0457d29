"""A disk that takes its time: who shares a sync, and how much may wait for one. Strace tells what was called when."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.real.child import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.support import Zygote

    Record = Callable[[str, Any], None]

PUTS: Final = 240
MARK: Final = re.compile(r"m\d{6}")
BEGUN: Final = re.compile(r"^(\d+) +[\d.]+ (\w+)\(\d+<([^>]+)>(.*)$")
SUBMITTED: Final = re.compile(
    r"io_submit\(.*aio_data=(\w+), aio_lio_opcode=IOCB_CMD_FDSYNC, aio_fildes=\d+<([^>]+)>.* = 1$"
)
TOLD: Final = re.compile(r"\{data=(\w+), obj=\w+, res=0, res2=0\}")
RESUMED: Final = re.compile(r"^(\d+) +[\d.]+ <\.\.\. (\w+) resumed>")


class Watch:
    """Reads what strace wrote, line by line, and knows of each mark whether it is on the disk.

    Attributes:
        acknowledged: marks that a caller was told of.
        shared: the most marks that one sync made durable.
        late: how many were written when a sync of their file had begun, and nobody been told of its end.
    """

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.shared = self.late = 0
        self._written: dict[str, set[str]] = {}
        self._durable: set[str] = set()
        self._under_way: dict[str, tuple[str, str, set[str]]] = {}
        self._untold: dict[str, str] = {}

    def read(self, line: str) -> None:
        resumed = RESUMED.match(line)
        if resumed is not None:
            self._end(resumed[1], *self._under_way.pop(resumed[1]))
            return
        begun = BEGUN.match(line)
        if begun is None:
            return
        thread, call, path, rest = begun.groups()
        marks = set(MARK.findall(rest)) if call != "fdatasync" else set(self._written.get(path, ()))
        if call == "writev":
            assert marks <= self._durable, f"told of {marks - self._durable}, which no sync covers that began later"
            self.acknowledged |= marks
            if not marks:
                del self._untold[thread]
        if line.endswith("<unfinished ...>"):
            self._under_way[thread] = call, path, marks
        else:
            self._end(thread, call, path, marks)

    def _end(self, thread: str, call: str, path: str, marks: set[str]) -> None:
        if call == "fdatasync":
            self._untold[thread] = path
            self._synced(marks)
        elif call.startswith("pwrite"):
            self.late += len(marks) if path in self._untold.values() else 0
            self._written.setdefault(path, set()).update(marks)

    def _synced(self, marks: set[str]) -> None:
        self.shared = max(self.shared, len(marks - self._durable))
        self._durable |= marks


def test_a_put_written_while_a_sync_runs_waits_for_the_next(traced: Zygote, seed: int, record_property: Record) -> None:
    ended = traced.run("together", seed, PUTS, calls="/^(pwrite64|pwritev2?|fdatasync|writev)$")
    assert ended.code == 0, traced.complaints()[-3000:]
    watch = Watch()
    for line in ended.lines:
        watch.read(line)
    assert len(watch.acknowledged) == PUTS
    assert watch.shared > 1
    assert watch.late
    record_property("trials", PUTS)


class KernelWatch(Watch):
    """Likewise where the kernel syncs by itself.

    Attributes:
        begun: syncs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0
        self._syncing: dict[str, tuple[str, set[str]]] = {}

    def read(self, line: str) -> None:
        submitted, told = SUBMITTED.search(line), TOLD.findall(line)
        if submitted is not None:
            number, path = submitted.groups()
            self._syncing[number] = path, set(self._written.get(path, ()))
            self.begun += 1
        elif told:
            for number in told:
                path, marks = self._syncing.pop(number)
                self._end_of(path, marks)
        else:
            super().read(line)

    def _end_of(self, path: str, marks: set[str]) -> None:
        self.late += len(self._written.get(path, set()) - marks)
        self._synced(marks)


def test_a_put_written_while_the_kernel_syncs_waits_for_the_next(
    traced: Zygote, seed: int, record_property: Record
) -> None:
    calls = "/^(pwrite64|pwritev2?|fdatasync|writev|io_submit|io_getevents)$"
    late, shared, trials = False, 0, 0
    # A machine that is busy may not get round to writing anything while a sync runs: then once more.
    while trials < 5 * PUTS and not (late and shared > 1):
        ended = traced.run("together by the kernel", seed + trials, PUTS, calls=calls)
        assert ended.code == 0, traced.complaints()[-3000:]
        watch = KernelWatch()
        for line in ended.lines:
            watch.read(line)
        if not watch.begun:
            pytest.skip("needs io_submit, which this system does not give")
        assert len(watch.acknowledged) == PUTS
        late, shared, trials = late or bool(watch.late), max(shared, watch.shared), trials + PUTS
    assert shared > 1
    assert late
    record_property("trials", trials)


def test_puts_are_durable_where_the_kernel_begins_no_sync(traced: Zygote, seed: int, record_property: Record) -> None:
    calls = "/^(pwrite64|pwritev2?|fdatasync|writev|io_submit|io_getevents)$"
    ended = traced.run("together by the kernel", seed, PUTS, calls=calls, inject="io_submit:error=EAGAIN:when=1+2")
    assert ended.code == 0, traced.complaints()[-3000:]
    watch = KernelWatch()
    for line in ended.lines:
        if "(INJECTED)" not in line:
            watch.read(line)
    assert len(watch.acknowledged) == PUTS
    record_property("trials", PUTS)


def test_what_waits_for_a_slow_disk_is_bounded(traced: Zygote, record_property: Record) -> None:
    ended = traced.run("flood", 0, 5, calls="fdatasync", inject="fdatasync:delay_enter=20000")
    assert ended.code == 0, traced.complaints()[-3000:]
    (most, accepted), *_ = [note[1:] for note in ended.notes]
    assert sum("(DELAYED)" in line for line in ended.lines) >= 5
    assert OPTIONS.memory_bytes // 8 <= most <= OPTIONS.memory_bytes // 2
    assert accepted * 1000 > most
    record_property("trials", accepted)
