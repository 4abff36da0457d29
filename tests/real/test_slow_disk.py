"""A disk that takes its time, by strace: who shares a sync, and how much may wait for one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tests.real.child import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real.support import Zygote

    Record = Callable[[str, Any], None]

PUTS: Final = 240
MARK: Final = re.compile(r"m\d{6}")
BEGUN: Final = re.compile(r"^(\d+) +[\d.]+ (\w+)\(\d+<([^>]+)>(.*)$")
RESUMED: Final = re.compile(r"^(\d+) +[\d.]+ <\.\.\. (\w+) resumed>")


class Watch:
    """Reads what strace wrote, line by line, and knows of each mark whether it is on the disk.

    Attributes:
        acknowledged: marks that a caller was told of.
        shared: the most marks that one sync made durable.
        late: how many were written while a sync of their file ran.
    """

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.shared = self.late = 0
        self._written: dict[str, set[str]] = {}
        self._durable: set[str] = set()
        self._under_way: dict[str, tuple[str, str, set[str]]] = {}

    def read(self, line: str) -> None:
        resumed = RESUMED.match(line)
        if resumed is not None:
            self._end(*self._under_way.pop(resumed[1]))
            return
        begun = BEGUN.match(line)
        if begun is None:
            return
        thread, call, path, rest = begun.groups()
        marks = set(MARK.findall(rest)) if call != "fdatasync" else set(self._written.get(path, ()))
        if call == "writev":
            assert marks <= self._durable, f"told of {marks - self._durable}, which no sync covers that began later"
            self.acknowledged |= marks
        if line.endswith("<unfinished ...>"):
            self._under_way[thread] = call, path, marks
        else:
            self._end(call, path, marks)

    def _end(self, call: str, path: str, marks: set[str]) -> None:
        if call == "fdatasync":
            self.shared = max(self.shared, len(marks - self._durable))
            self._durable |= marks
        elif call.startswith("pwrite"):
            syncing = {other for kind, other, _ in self._under_way.values() if kind == "fdatasync"}
            self.late += len(marks) if path in syncing else 0
            self._written.setdefault(path, set()).update(marks)


def test_a_put_written_while_a_sync_runs_waits_for_the_next(traced: Zygote, seed: int, record_property: Record) -> None:
    ended = traced.run(
        "together", seed, PUTS, calls="/^(pwrite64|pwritev2?|fdatasync|writev)$", inject="fdatasync:delay_enter=3000"
    )
    assert ended.code == 0, traced.complaints()[-3000:]
    watch = Watch()
    for line in ended.lines:
        watch.read(line)
    assert len(watch.acknowledged) == PUTS
    assert watch.shared > 1
    assert watch.late
    record_property("trials", PUTS)


def test_what_waits_for_a_slow_disk_is_bounded(traced: Zygote, record_property: Record) -> None:
    ended = traced.run("flood", 0, 5, calls="fdatasync", inject="fdatasync:delay_enter=20000")
    assert ended.code == 0, traced.complaints()[-3000:]
    (most, accepted), *_ = [note[1:] for note in ended.notes]
    assert sum("(DELAYED)" in line for line in ended.lines) >= 5
    assert OPTIONS.memory_bytes // 8 <= most <= OPTIONS.memory_bytes // 2
    assert accepted * 1000 > most
    record_property("trials", accepted)
