"""That a queue's files are written to the byte, durably, and over nothing."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.diskqueue import DiskQueueExistsError, DiskQueueMetadata, DiskQueueWriter, RollRule, list_queues, read, write
from aiodq.errors import (
    DiskFullError,
    InvalidMessageError,
    InvalidNameError,
    InvalidOptionError,
    MessageSizeError,
    StorageError,
    StoreFailedError,
    StoreNotFoundError,
)
from aiodq.testing import Fault, FaultPlan, SimulatedFileSystem
from tests.diskqueue.queues import AT, NAME, disk, left_open, messages, outcome, path, record, records, written

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.format.layout import BytesLike
    from aiodq.testing import Call

BODIES = messages(range(9))
TEN = [bytes([n]) * 10 for n in range(12)]


def modelled(bodies: list[bytes], limit: int, roll: RollRule) -> dict[str, bytes]:
    """Return the files by the rules' own words, with a list of files in memory."""
    files = [b""]
    for body in bodies:
        if roll is RollRule.BEFORE and files[-1] and len(files[-1] + record(body)) > limit:
            files.append(b"")
        files[-1] += record(body)
        if roll is not RollRule.BEFORE and len(files[-1]) >= limit + (roll is RollRule.EXCEEDED):
            files.append(b"")
    said = f"{len(bodies)}\n0,0\n{len(files) - 1},{len(files[-1])}\n"
    return {path("meta"): said.encode(), **{path(n): data for n, data in enumerate(files) if data}}


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(1, 80), st.sampled_from(RollRule))
def test_files_are_as_the_rules_say_and_read_back(bodies: list[bytes], limit: int, roll: RollRule) -> None:
    fs = disk({})
    write(AT, NAME, bodies, max_bytes_per_file=limit, roll=roll, fs=fs)
    assert written(fs) == modelled(bodies, limit, roll)
    assert outcome(fs) == (bodies, [])


@pytest.mark.parametrize(
    ("roll", "sizes", "where"),
    [
        # After 10 messages of 14 bytes a file of 140 bytes is full by the first two rules, and the last waits for more.
        (RollRule.BEFORE, [140, 28], (1, 28)),
        (RollRule.REACHED, [140, 28], (1, 28)),
        (RollRule.EXCEEDED, [154, 14], (1, 14)),
    ],
)
def test_where_the_rules_differ(roll: RollRule, sizes: list[int], where: tuple[int, int]) -> None:
    fs = disk({})
    said = write(AT, NAME, TEN, max_bytes_per_file=140, roll=roll, fs=fs)
    assert [len(data) for at, data in written(fs).items() if at != path("meta")] == sizes
    assert said == (12, 0, 0, *where)


@pytest.mark.parametrize(
    ("roll", "said"), [(RollRule.BEFORE, b"10\n0,0\n0,140\n"), (RollRule.REACHED, b"10\n0,0\n1,0\n")]
)
def test_a_last_file_that_is_just_full(roll: RollRule, said: bytes) -> None:
    fs = disk({})
    assert write(AT, NAME, TEN[:10], max_bytes_per_file=140, roll=roll, fs=fs).encode() == said
    assert written(fs) == {path(0): records(*TEN[:10]), path("meta"): said}


def test_a_message_larger_than_a_file_has_one_of_its_own() -> None:
    fs = disk({})
    write(AT, NAME, [b"a", b"b" * 100, b"c"], max_bytes_per_file=20, fs=fs)
    assert [written(fs)[path(n)] for n in range(3)] == [record(b"a"), record(b"b" * 100), record(b"c")]


def test_a_queue_without_messages_is_metadata() -> None:
    fs = disk({})
    write(AT, NAME, [], fs=fs)
    assert written(fs) == {path("meta"): b"0\n0,0\n0,0\n"}


def test_all_kinds_of_bytes_on_the_machines_own_disk(tmp_path: Path) -> None:
    bodies: list[BytesLike] = [b"one", bytearray(b"two"), memoryview(b"three"), memoryview(b"12345678").cast("I")]
    write(tmp_path, "a:b", bodies)
    assert [found.body for found in read(tmp_path, "a:b")] == [b"one", b"two", b"three", b"12345678"]
    assert sorted(os.listdir(tmp_path)) == ["a:b.diskqueue.000000.dat", "a:b.diskqueue.meta.dat"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


# --- over nothing


@pytest.mark.parametrize("key", ["000000.dat", "000007.dat", "000003.dat.bad", "meta.dat", "meta.dat.123.tmp"])
def test_a_directory_with_files_of_that_name_is_left_as_it_is(key: str) -> None:
    image: dict[str, bytes | None] = {AT: None, f"{AT}/{NAME}.diskqueue.{key}": b"theirs"}
    fs = SimulatedFileSystem(image)
    with pytest.raises(DiskQueueExistsError) as raised:
        write(AT, NAME, BODIES, fs=fs)
    assert raised.value.path == f"{AT}/{NAME}.diskqueue.{key}"
    assert written(fs) == {f"{AT}/{NAME}.diskqueue.{key}": b"theirs"}
    for other in (NAME + "2", NAME[:-1]):
        write(AT, other, BODIES, fs=fs)


def test_a_file_that_another_makes_meanwhile_is_left_as_it_is() -> None:
    fs = disk({})
    with pytest.raises(DiskQueueExistsError), DiskQueueWriter(AT, NAME, max_bytes_per_file=20, fs=fs) as queue:
        queue.put(b"first")
        fs.open(path(1), create=True).write_at([b"theirs"], 0)
        queue.put(b"a second one that needs a file")
    assert written(fs) == {path(1): b"theirs"}


def test_arguments_that_are_none() -> None:
    with pytest.raises(InvalidNameError):
        DiskQueueWriter(AT, "a/b", fs=disk({}))
    with pytest.raises(InvalidOptionError):
        DiskQueueWriter(AT, NAME, max_bytes_per_file=0, fs=disk({}))
    with pytest.raises(InvalidOptionError):
        DiskQueueWriter(AT, NAME, min_message_bytes=2, max_message_bytes=1, fs=disk({}))
    with pytest.raises(StoreNotFoundError):
        DiskQueueWriter("/nowhere", NAME, fs=disk({}))


# --- errors


@pytest.mark.parametrize("size", [2, 6])
def test_a_message_of_a_wrong_size_is_refused_and_the_rest_goes_on(size: int) -> None:
    fs = disk({})
    with DiskQueueWriter(AT, NAME, min_message_bytes=3, max_message_bytes=5, fs=fs) as queue:
        queue.put(b"good")
        with pytest.raises(MessageSizeError):
            queue.put(bytes(size))
        queue.put(b"fine")
    assert outcome(fs) == ([b"good", b"fine"], [])


@pytest.mark.parametrize("short", [0, 1, 4, 6])
@pytest.mark.parametrize("more", [True, False])
def test_a_put_refused_by_a_full_disk_leaves_no_trace(short: int, more: bool) -> None:
    fs = disk({})
    fs.plan.add(Fault("write", 2, "ENOSPC", short=short))
    with DiskQueueWriter(AT, NAME, fs=fs) as queue:
        queue.put(b"first")
        with pytest.raises(DiskFullError):
            queue.put(b"the second")
        if more:
            queue.put(b"x")
    expected = [b"first", b"x"] if more else [b"first"]
    assert written(fs)[path(0)] == records(*expected)
    assert outcome(fs) == (expected, [])


def test_a_short_write_is_gone_on_with() -> None:
    fs = disk({})
    fs.plan.add(Fault("write", 1, "", short=3, lasting=True))
    write(AT, NAME, BODIES, max_bytes_per_file=60, fs=fs)
    assert outcome(fs) == (BODIES, [])


@pytest.mark.parametrize("call", ["sync", "sync_directory"])
@pytest.mark.parametrize("at", [1, 2])
def test_after_a_failed_sync_nothing_is_tried_again(call: Call, at: int) -> None:
    fs = disk({})
    fs.plan.add(Fault(call, at))
    queue = DiskQueueWriter(AT, NAME, fs=fs)
    queue.put(b"first")
    for _ in range(2):
        with pytest.raises(StoreFailedError):
            queue.close()
    with pytest.raises(StoreFailedError):
        queue.put(b"second")
    queue.discard()
    assert written(fs) == {}


@pytest.mark.parametrize("call", ["create", "write", "size", "sync", "rename", "sync_directory"])
def test_when_writing_fails_the_files_are_removed(call: str) -> None:
    calls = {"create": 2, "write": 3, "size": 2, "sync": 2, "rename": 1, "sync_directory": 2}
    fs = disk({})
    fs.plan = FaultPlan.parse(f"{call}@{calls[call]}:EIO")
    with pytest.raises(StorageError) as raised:
        write(AT, NAME, BODIES, max_bytes_per_file=60, fs=fs)
    assert raised.value.errno is not None
    assert written(fs) == {}
    assert left_open(fs) == (call == "create")


def test_after_a_close_without_space_it_goes_on() -> None:
    fs = disk({})
    queue = DiskQueueWriter(AT, NAME, fs=fs)
    queue.put(b"first")
    fs.plan.add(Fault("write", 1, "ENOSPC"))
    with pytest.raises(DiskFullError):
        queue.close()
    queue.put(b"second")
    queue.close()
    assert outcome(fs) == ([b"first", b"second"], [])


def test_an_error_of_the_callers_discards() -> None:
    fs = disk({})
    with pytest.raises(ZeroDivisionError):
        write(AT, NAME, (bytes(10 // n) for n in (2, 1, 0)), fs=fs)
    assert written(fs) == {}


def test_a_closed_writer_stays_closed() -> None:
    fs = disk({})
    queue = DiskQueueWriter(AT, NAME, fs=fs)
    queue.put(b"first")
    queue.close()
    before = fs.image()
    queue.close()
    queue.discard()
    with pytest.raises(StorageError):
        queue.put(b"second")
    assert fs.image() == before
    assert queue.metadata == DiskQueueMetadata.decode(before[path("meta")] or b"")


# --- durability


def test_a_power_cut_leaves_no_metadata_or_the_whole_queue(seed: int) -> None:
    fs = SimulatedFileSystem({AT: None}, record=True)
    write(AT, NAME, BODIES, max_bytes_per_file=60, fs=fs)
    whole = 0
    for _, image in fs.power_cuts(seed, limit=16):
        if path("meta") in image:
            whole += 1
            assert outcome(SimulatedFileSystem(image)) == (BODIES, [])
    assert whole


def test_what_was_written_is_durable_when_it_returns() -> None:
    fs = disk({})
    write(AT, NAME, BODIES, max_bytes_per_file=60, fs=fs)
    assert outcome(fs.power_cut()) == (BODIES, [])


@pytest.mark.parametrize("wrong", [5, True, "text", [1, 2], None, 3.5], ids=repr)
def test_a_message_is_bytes_and_no_number_of_zeros(wrong: Any) -> None:
    fs = disk({})
    with DiskQueueWriter(AT, NAME, fs=fs) as writer:
        writer.put(b"before")
        with pytest.raises(InvalidMessageError) as caught:
            writer.put(wrong)
        assert isinstance(caught.value, TypeError)
    assert outcome(fs) == ([b"before"], [])


@pytest.mark.parametrize("wrong", [b"abc", bytearray(b"abc"), memoryview(b"abc"), "abc", 3, None], ids=type)
def test_one_message_is_not_taken_for_many(wrong: Any) -> None:
    fs = disk({})
    with pytest.raises(InvalidMessageError) as caught:
        write(AT, NAME, wrong, fs=fs)
    assert isinstance(caught.value, TypeError)
    assert written(fs) == {}


@pytest.mark.parametrize("option", ["max_bytes_per_file", "min_message_bytes", "max_message_bytes", "roll"])
@pytest.mark.parametrize("wrong", ["1", None, 1.5, True], ids=repr)
def test_options_of_another_type_are_named(option: str, wrong: Any) -> None:
    with pytest.raises(InvalidOptionError, match=option) as caught:
        DiskQueueWriter(AT, NAME, fs=disk({}), **{option: wrong})
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("wrong", [None, 1, b"queues"], ids=repr)
def test_what_is_no_path_and_no_name_is_refused(wrong: Any) -> None:
    for use in (DiskQueueWriter, read):
        with pytest.raises(InvalidOptionError, match="directory") as caught:
            use(wrong, NAME, fs=disk({}))
        assert isinstance(caught.value, TypeError)
        with pytest.raises(InvalidNameError):
            use(AT, wrong, fs=disk({}))
    with pytest.raises(InvalidOptionError, match="directory"):
        list_queues(wrong)


@pytest.mark.parametrize("wrong", ["", "a\0b"], ids=repr)
def test_a_directory_that_cannot_be_is_refused(wrong: str) -> None:
    for use in (DiskQueueWriter, read):
        with pytest.raises(StorageError):
            use(wrong, NAME)


def test_a_name_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidNameError, match=r"'half a pair \\ud800' is no name of files: it is no Unicode"):
        DiskQueueWriter(tmp_path, "half a pair \ud800")
    with pytest.raises(StorageError, match="directory is the name of a directory, not 'half a pair"):
        DiskQueueWriter("half a pair \ud800", NAME)


def test_text_of_numpy_names_a_directory(tmp_path: Path) -> None:
    write(np.str_(tmp_path), NAME, BODIES)
    assert list_queues(np.str_(tmp_path)) == [NAME]
    assert [message.body for message in read(np.str_(tmp_path), NAME)] == BODIES
