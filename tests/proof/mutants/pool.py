"""Files that are closed while they are idle."""

from __future__ import annotations

from aiodq.storage.io.file_pool import PooledFile
from tests.proof.mutants.registry import change

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
    "a file that is opened again may be another one",
    PooledFile.checked,
    "file.size() != self._size",
    "False",
    test="tests/storage/io/test_file_pool.py::test_a_file_that_somebody_changed_meanwhile_is_not_used",
)
