"""Files that are closed while they are idle, and syncs that go on by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from aiodq.engine.loop.sync_backend import SyncBackend, Synced
from aiodq.engine.loop.worker_threads import WorkerThreads
from aiodq.storage.io.file_pool import PooledFile
from aiodq.storage.io.kernel_aio import KernelAio
from tests.proof.mutants.registry import Patch, change, mutant

if TYPE_CHECKING:
    from collections.abc import Callable

change(
    "a file is closed while idle without its sync",
    PooledFile.lay_down,
    "if self.dirty:",
    "if self is None:",
    test="tests/storage/io/test_file_pool.py::test_what_is_written_is_synced_before_it_is_closed",
)
change(
    "a sync that failed while a file was closed is forgotten",
    PooledFile.lay_down,
    "self._failure = cause\n    self.dirty",
    "self._failure = None\n    self.dirty",
    test="tests/storage/io/test_file_pool.py::test_an_error_at_closing_is_told_to_all_who_rely_on_it",
)
change(
    "a file that is written during a sync that goes on by itself counts as synced",
    PooledFile.end_sync,
    "if not synced:\n            self.dirty = not self.careless",
    "self.dirty = not synced",
    test="tests/storage/io/test_file_pool.py::test_what_is_written_during_a_sync_that_goes_on_by_itself_is_not_covered",
)
change(
    "a file of which a sync goes on by itself that failed counts as synced",
    PooledFile.end_sync,
    "if not synced:",
    "if self is None:",
    test="tests/storage/io/test_file_pool.py::test_a_sync_that_goes_on_by_itself_counts_once_it_has_ended",
)
change(
    "a file is closed amid a write",
    PooledFile.claimed,
    "if self.writing:",
    "if self is None:",
    test="tests/storage/io/test_file_pool.py::test_no_file_is_closed_amid_a_write_that_locks_nothing",
)
change(
    "what is written without a lock during a sync counts as synced",
    PooledFile.write_alone,
    "self.dirty = self.used = True",
    "self.used = True",
    test="tests/storage/io/test_file_pool.py::test_what_is_written_without_a_lock_is_synced_before_it_is_closed",
)
change(
    "of many syncs that have ended at once some are never told",
    KernelAio.ended,
    "while count == _MOST:",
    "for _ in range(1):",
    test="tests/storage/io/test_kernel_aio.py",
)


@mutant("single puts", "puts and acks")
def a_sync_of_the_kernels_counts_that_was_never_begun() -> Patch:
    def nothing(
        backend: SyncBackend,
        what: Synced,
        report: Callable[[None, BaseException | None], None],
        then: Callable[[], None] | None = None,
    ) -> None:
        if backend._aio is None or not what.begin_sync(lambda _file: None):
            backend.threads.start(what.sync, report, then)
            return
        what.end_sync(0)
        backend._loop.call_soon(report, None, None)

    return mock.patch.object(SyncBackend, "start", nothing)


change(
    "a sync that failed in a thread stops only a store whose work sees to it",
    WorkerThreads._tell_next,
    "isinstance(error, StoreFailedError)",
    "False",
    test="tests/system/test_thread_pool.py::test_a_failed_sync_stops_the_store_whatever_its_caller_makes_of_it",
)
change(
    "a sync of the kernel's that failed stops only a store whose caller sees to it",
    SyncBackend._look,
    "error = raised\n            self._fail(error)",
    "error = raised",
    test="tests/system/test_sync_backend.py::test_a_sync_that_fails_stops_the_store_whatever_its_caller_makes_of_it",
)
change(
    "a file that is opened again may be another one",
    PooledFile.checked,
    "file.size() == self._size",
    "True",
    test="tests/storage/io/test_file_pool.py::test_a_file_that_somebody_changed_meanwhile_is_not_used",
)
