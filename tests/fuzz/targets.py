"""One plain function for each format: bytes in; a typed error or a result out, and nothing else, whatever the bytes.

What a target returns tells how deep the bytes reached: True where something was read. What is promised of every result
is asserted here, so that a crash of any kind is a finding.
"""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from aiodq.diskqueue import DiskQueueReader
from aiodq.engine.store.opening import open_topic
from aiodq.errors import AiodqError, CorruptionError, FormatVersionError
from aiodq.format.columns import decode_columns
from aiodq.format.decode import decode_frames
from aiodq.format.footer import FooterTail, SegmentIndex
from aiodq.format.frame import FrameContext, check_frame, decode_frame, read_prefix
from aiodq.format.journal import (
    JOURNAL_HEADER,
    decode_blocks,
    decode_checkpoint,
    decode_journal_header,
    encode_block,
    encode_checkpoint,
    encode_journal_header,
    replayed,
)
from aiodq.format.layout import FOOTER_TAIL, INDEX_ENTRY, SEGMENT_HEADER
from aiodq.format.scan import frame_before
from aiodq.format.segment import SegmentHeader
from aiodq.format.transactions import Acks, Commit, decode_commit, encode_commit
from aiodq.format.vectorized.arrow import ArrowDecoder
from aiodq.options import StoreOptions
from aiodq.storage.log.recovery import recover
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.store_reader import StoreReader
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.offline.verify_segment import check_segment
from aiodq.storage.read.log_reader import LogReader, LogView
from aiodq.storage.segments.frame_scan import Unit, scan_units
from aiodq.storage.segments.segment_contents import examine
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS, TransactionFile, read_transactions
from aiodq.testing import FakeClock, SimulatedFileSystem
from tests.format.arrows import rows_expected, rows_of
from tests.format.support import encode_columns, first_frame
from tests.fuzz import mend
from tests.fuzz.small_targets import commit_record, hold, identity, origins, slots, topic
from tests.fuzz.stores import STORE, TOPICS, from_row, image_of
from tests.fuzz.wire_targets import mend_packets, packets

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.format.frame import Batch
    from aiodq.testing import Image

BASE: Final = 1000
TOPIC: Final = UUID(int=7)
CONTEXT: Final = FrameContext(BASE, zlib.crc32, mend.SALT)
START: Final = SEGMENT_HEADER.size
_READ: Final = 1 << 16
TIME: Final = 1_760_000_000_000_000_000
DISKQUEUE_MARK: Final = b"\n==\n"


def segment_header(data: bytes) -> bool:
    """The 64 bytes a segment begins with."""
    try:
        header = SegmentHeader.decode(data)
    except (CorruptionError, FormatVersionError):
        return False
    assert SegmentHeader.decode(header.encode()) == header
    return True


def _same_again(batch: Batch) -> None:
    """What was decoded can be written, and is the same then."""
    assert batch.first <= batch.stop
    if batch.columns.bodies:
        flags, payload = encode_columns(batch.columns)
        assert decode_columns(payload, len(batch.columns.bodies), flags) == batch.columns


def frames(data: bytes) -> bool:
    """Frames, read by every way there is to read them."""
    limit = START + len(data)
    try:
        batches, used, error = decode_frames(data, CONTEXT, position=START, limit=limit)
    except FormatVersionError:
        return True
    assert 0 <= used <= len(data)
    for batch in batches:
        _same_again(batch)
    rows, end, refusal = ArrowDecoder()(data, CONTEXT, position=START, limit=limit)
    assert (rows_of(rows), end, refusal is None) == (rows_expected(batches), used, error is None)
    _, skipped, _ = decode_frames(data, CONTEXT, position=START, limit=limit, skip_below=1 << 63)
    assert skipped >= used
    found = first_frame(data, 0, CONTEXT, position=START, limit=limit)
    if found is not None:
        check_frame(memoryview(data), found.position - START, found, CONTEXT)
    assert found is not None or not used
    try:
        last = frame_before(data, used, CONTEXT, position=START, limit=limit)
        assert last.end == START + used
    except CorruptionError:
        assert used == 0 or error is not None or not batches
    try:
        frame = read_prefix(data, 0, CONTEXT, position=START, limit=limit)
        _same_again(decode_frame(memoryview(data), 0, frame, CONTEXT))
    except (CorruptionError, FormatVersionError):
        return bool(used)
    assert used >= frame.length
    return True


def runs(data: bytes) -> bool:
    """Puts of several frames: whole, or not at all, and in order."""
    fs = SimulatedFileSystem({"/s": bytes(START) + data})
    limit = START + len(data)
    place, offset, units = START, BASE, 0
    for item in scan_units(fs.open("/s"), CONTEXT, "/s", limit=limit, expected=BASE):
        if isinstance(item, Unit):
            assert item.frames[0].position == place
            assert offset <= item.first <= item.stop
            assert all(one.stop == two.first and one.end == two.position for one, two in pairwise(item.frames))
            place, offset, units = item.end, item.stop, units + 1
        else:
            assert place == item.position < item.end <= limit
            assert item.cut_short == (item.end == limit) or item.end < limit
            place = item.end
    assert place == limit
    return bool(units)


def footer(data: bytes) -> bool:
    """Index and tail."""
    try:
        tail = FooterTail.decode(data, len(data))
        if tail is None:
            return False
        assert FooterTail.decode(bytes(tail.data_end + tail.entries * INDEX_ENTRY.size) + tail.encode(), len(data))
        index = SegmentIndex.decode(data[tail.data_end : len(data) - FOOTER_TAIL.size], tail)
    except CorruptionError:
        return False
    for relative in (0, tail.end, 1 << 63):
        assert START <= index.position_of(relative) < max(tail.data_end, START + 1)
    again = SegmentIndex.decode(index.encode(), tail) if _canonical(data, tail) else index
    assert again == index
    return True


def _canonical(data: bytes, tail: FooterTail) -> bool:
    """Return whether the reserved bytes of the entries are zeros, which checksums count and decoders ignore."""
    entries = range(tail.data_end, tail.data_end + tail.entries * INDEX_ENTRY.size, INDEX_ENTRY.size)
    return not any(any(data[at + 20 : at + 24]) for at in entries)


def journal(data: bytes) -> bool:
    """A channel's journal."""
    try:
        generation = decode_journal_header(data)
        ops, end = decode_blocks(data, generation)
    except (CorruptionError, FormatVersionError):
        return False
    assert JOURNAL_HEADER.size <= end <= len(data)
    if ops:
        again = encode_journal_header(generation) + encode_block(ops, generation)
        assert decode_blocks(again, generation) == (ops, len(again))
    return bool(ops)


def checkpoint(data: bytes) -> bool:
    """A channel's checkpoint."""
    try:
        image, generation = decode_checkpoint(data)
    except (CorruptionError, FormatVersionError):
        return False
    assert decode_checkpoint(bytes(encode_checkpoint(image, generation))) == (image, generation)
    settled = replayed(image, ())
    assert all(start < stop for start, stop in settled.ranges)
    return True


def segment(data: bytes) -> bool:
    """A whole segment: checked, recovered twice, read."""
    path = f"/t/{BASE:020d}.seg"
    fs = SimulatedFileSystem({path: data})
    try:
        owner = SegmentHeader.decode(data).topic
    except (CorruptionError, FormatVersionError):
        owner = TOPIC
    try:
        check_segment(fs, path, BASE, owner, 0, last=True, copied=False)
    except FormatVersionError:
        return False
    examine(fs.open(path), CONTEXT, path, limit=len(data), durable_end=0)
    found = recover(fs, "/t", owner, 0)
    again = recover(fs, "/t", owner, 0)
    assert [(s.base, s.end, s.records) for s in again.segments] == [(s.base, s.end, s.records) for s in found.segments]
    assert not again.cut_bytes
    count = 0
    for one in again.segments:
        count += _read_all(fs, LogView((one,), one.end, one.data_end))
    return bool(count)


def _read_all(fs: SimulatedFileSystem, view: LogView) -> int:
    """Read a log from end to end: forward only, and it ends. Return how many messages there were."""
    reader = LogReader(fs)
    at = view.segments[0].base if view.segments else view.stop
    count = 0
    try:
        while at < view.stop:
            result = reader.read(view, at, _READ)
            assert result.next > at
            for batch in result.batches:
                assert at <= batch.first < batch.stop <= result.next
                at = batch.stop
                count += len(batch.columns.bodies)
            at = result.next
    except FormatVersionError:
        return count
    finally:
        reader.close()
    return count


def store(row: bytes) -> bool:
    """A whole store: looked at, opened, read, looked at, repaired, found well, opened."""
    fs = SimulatedFileSystem(image_of(from_row(row)))
    count = 0
    try:
        _look(fs)
        for _ in range(2):
            count += sum(_open(fs, name) for name in TOPICS if fs.is_directory(f"{STORE}/{name}"))
            _look(fs)
        repair_store(STORE, fs)
        report = verify_store(STORE, fs)
        assert report.ok, report.damages
        assert not repair_store(STORE, fs)
        for name in TOPICS:
            if fs.is_directory(f"{STORE}/{name}"):
                _open(fs, name)
    except AiodqError:
        return bool(count)
    return True


def _look(fs: SimulatedFileSystem) -> None:
    before = fs.image()
    verify_store(STORE, fs)
    reader = StoreReader(STORE, fs)
    reader.stats()
    for name in reader.topics():
        for message in reader.topic(name).scan():
            assert message.offset >= 0
    assert fs.image() == before


def _open(fs: SimulatedFileSystem, name: str) -> int:
    opened = open_topic(fs, FakeClock(), STORE, name, StoreOptions())
    try:
        view = opened.log.view()
        count = _read_all(fs, view)
        for _, state in opened.channels.values():
            assert 0 <= state.depth <= max(view.stop, 1 << 63)
            assert state.fresh() <= view.stop
    finally:
        opened.abandon()
    return count


def transactions(data: bytes) -> bool:
    """A store's file of transactions."""
    fs = SimulatedFileSystem({"/s": None, f"/s/{TRANSACTIONS}": data})
    try:
        found = read_transactions(fs, "/s")
    except FormatVersionError:
        return False
    assert bool(found.damages) or found.header is not None or not any(data)
    for block in found.blocks:
        again = decode_commit(encode_commit(block.commit, block.number, block.durable, 3), 0, 3)
        assert again is not None
        assert (again.commit, again.number, again.durable) == (block.commit, block.number, block.durable)
    file = TransactionFile(fs, "/s", TIME)
    file.reset(TIME)
    (number,) = file.append([Commit([Acks("t", "c", [(1, 2)])])], TIME)
    file.close()
    assert [block.number for block in read_transactions(fs, "/s").blocks] == [number]
    assert all(block.number < number for block in found.blocks)
    return bool(found.blocks)


def diskqueue(data: bytes) -> bool:
    """A queue of go-diskqueue: its metadata, and behind a mark each, its data files."""
    metadata, *files = data.split(DISKQUEUE_MARK)
    image: Image = {f"/q/q.diskqueue.{number:06}.dat": content for number, content in enumerate(files[:3])}
    if metadata:
        image["/q/q.diskqueue.meta.dat"] = metadata
    fs = SimulatedFileSystem({"/q": None, **image})
    before = fs.image()
    try:
        reader = DiskQueueReader("/q", "q", fs=fs)
        messages = list(reader)
    except AiodqError:
        return False
    assert sum(4 + len(message.body) for message in messages) <= sum(map(len, files[:3]))
    assert fs.image() == before
    assert [message.body for message in reader] == [message.body for message in messages]
    return bool(messages)


class Target(NamedTuple):
    """A function that reads bytes, and how to set the checksums in them right."""

    read: Callable[[bytes], bool]
    mend: Callable[[bytes], bytes]


TARGETS: Final = {
    "header": Target(segment_header, mend.mend_header),
    "compact": Target(frames, mend.mend_frames),
    "batch": Target(frames, mend.mend_frames),
    "runs": Target(runs, mend.mend_frames),
    "footer": Target(footer, mend.mend_footer),
    "journal": Target(journal, mend.mend_journal),
    "checkpoint": Target(checkpoint, mend.mend_checkpoint),
    "topic": Target(topic, mend.mend_checked),
    "commit": Target(commit_record, mend.mend_checked),
    "hold": Target(hold, mend.mend_checked),
    "origins": Target(origins, mend.mend_checked),
    "identity": Target(identity, mend.mend_checked),
    "slots": Target(slots, mend.mend_slots),
    "transactions": Target(transactions, mend.mend_transactions),
    "diskqueue": Target(diskqueue, bytes),
    "packets": Target(packets, mend_packets),
    "segment": Target(segment, mend.mend_segment),
    "store": Target(store, mend.mend_store),
}


def run(name: str, data: bytes) -> bool:
    """Give bytes to a target. The first of them says, by its lowest bit, whether checksums are set right before."""
    target = TARGETS[name]
    rest = data[1:]
    return target.read(target.mend(rest) if data[:1] and data[0] & 1 else rest)
