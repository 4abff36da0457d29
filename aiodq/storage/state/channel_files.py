"""Reading the two files in a channel's directory: the checkpoint, and the journal of the operations after it.

The upper half of a generation derives from the topic's uuid and the channel's name, so that the files of one channel
are never taken for another's, as after a careless restore.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.errors import CorruptionError
from aiodq.format.journal import (
    JOURNAL_HEADER,
    ChannelImage,
    Op,
    OpKind,
    decode_blocks,
    decode_checkpoint,
    decode_journal_header,
    encode_journal_header,
)
from aiodq.format.layout import ALIGNMENT, written_size
from aiodq.format.segment import topic_salt
from aiodq.storage.io.durable_io import read_written
from aiodq.storage.io.quarantine import Damage
from aiodq.storage.state.topic.topic_meta import find_meta

if TYPE_CHECKING:
    from uuid import UUID

    from aiodq.storage.io.filesystem import FileSystem

__all__ = ["CHECKPOINT", "COUNT", "JOURNAL", "ChannelFiles", "read_channel", "topic_of"]

CHECKPOINT: Final = "checkpoint"
JOURNAL: Final = "journal"
_LARGEST: Final = 1 << 30
_OP_BYTES: Final = 24
_BLOCK_START: Final = 8
_OWNER_SHIFT: Final = 32
COUNT: Final = (1 << _OWNER_SHIFT) - 1
"""The bits of a generation that count the checkpoints; none is set before the first."""

_UNWRITTEN: Final = bytes(_OP_BYTES)
"""No block holds so many zeros in a row: every operation begins with its kind, which is not zero."""

_WRITTEN: Final = re.compile(rb"[^\0]")
_CHECKED: Final = 1 << 30
"""Bytes of which a search for blocks takes the checksum at most: a second or two. In a journal of 32,768 operations
those due times and offsets that look like the lengths of blocks make it half of that; only in a hostile one, more."""

_VALUE_BYTES: Final = 8
"""The last bytes of an operation: zeros, but for a kind in `_VALUED`."""

_VALUED: Final = frozenset({OpKind.REQUEUE, OpKind.DEFER})

_SECTOR: Final = 512
"""What a power cut leaves in part is cut at multiples of this."""


class ChannelFiles(NamedTuple):
    """The state of a channel in its files.

    Attributes:
        image: the checkpoint's.
        ops: the operations since.
        generation: that of the journal.
        end: where the journal's last whole block ends; 0 if the journal is to be created again.
        damages: what could not be read.
        torn: whether a block is missing before the end, or the rest is not zeros.
        unfinished: whether the rest is not zeros.
        sizes: the files that there are, by their names, and their sizes.
    """

    image: ChannelImage
    ops: list[Op]
    generation: int
    end: int
    damages: list[Damage]
    torn: bool
    unfinished: bool
    sizes: dict[str, int]


def read_channel(
    fs: FileSystem, directory: str, start: int, topic: UUID | None = None, *, described: bool = False
) -> ChannelFiles:
    """Read a channel's directory.

    Args:
        fs: the file system.
        directory: the channel's.
        start: where the channel began, used if no checkpoint can be read.
        topic: the channel's topic, as `topic_of` returns it; None to look it up.
        described: whether the topic's description names the channel. It did not before the journal was durable.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    damages: list[Damage] = []
    image, generation = ChannelImage(start), _first_generation(fs, directory, topic)
    path = os.path.join(directory, CHECKPOINT)
    sizes: dict[str, int] = {}
    data = _read(fs, directory, CHECKPOINT, sizes)
    if data is not None:
        try:
            found, number = decode_checkpoint(data, path)
            _check_owner(number, generation, path)
            image, generation = found, number
        except CorruptionError as error:
            damages.append(Damage(path, 0, len(data), error.message))
    path = os.path.join(directory, JOURNAL)
    data = _read(fs, directory, JOURNAL, sizes)
    if described and not generation & COUNT and (data is None or _is_unbegun(data, generation)):
        # An owner killed amid a fold may leave an emptied journal, but only beside a checkpoint.
        damages.append(Damage(path, 0, 0, "the journal is missing" if data is None else "the journal is empty"))
    blocks = _read_journal(data, path, generation, damages)
    unfinished = data is not None and written_size(data) > blocks.end
    torn = blocks.missing or unfinished
    return ChannelFiles(image, blocks.ops, blocks.generation, blocks.end, damages, torn, unfinished, sizes)


def _read(fs: FileSystem, directory: str, name: str, sizes: dict[str, int]) -> bytes | None:
    """Return the bytes of one of the two files, without very many zeros at its end, or None; note its size."""
    found = read_written(fs, os.path.join(directory, name), _LARGEST)
    if found is None:
        return None
    data, sizes[name] = found
    return data


def topic_of(fs: FileSystem, directory: str) -> UUID | None:
    """Return the uuid of a directory's topic, or None if it has no description.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    found = find_meta(fs, directory)
    return found.meta.uuid if found.there else None


def _first_generation(fs: FileSystem, directory: str, topic: UUID | None) -> int:
    """Return the number from which a channel's generations count: the upper half identifies it, 0 if unknown."""
    topic = topic or topic_of(fs, os.path.dirname(os.path.dirname(directory)))
    if topic is None:
        return 0
    return zlib.crc32(os.path.basename(directory).encode(), topic_salt(topic)) << _OWNER_SHIFT


def _check_owner(generation: int, expected: int, path: str) -> None:
    owner, mine = generation >> _OWNER_SHIFT, expected >> _OWNER_SHIFT
    if owner and mine and owner != mine:
        raise CorruptionError("the file is another channel's", path, 0)


class _Blocks(NamedTuple):
    """A journal's operations and generation, the end of its last whole block, and whether an earlier one is missing."""

    ops: list[Op]
    generation: int
    end: int
    missing: bool = False


def _read_journal(data: bytes | None, path: str, generation: int, damages: list[Damage]) -> _Blocks:
    """Return the blocks that a journal adds to a checkpoint of that generation."""
    if not data:
        if data is None and generation & COUNT:
            damages.append(Damage(path, 0, 0, "the journal is missing"))
        return _Blocks([], generation, 0)
    try:
        found = decode_journal_header(data, path)
    except CorruptionError as error:
        if _is_unbegun(data, generation):
            return _Blocks([], generation, 0)
        damages.append(Damage(path, 0, len(data), error.message))
        # The blocks' checksums begin with the generation, so they verify it, too.
        blocks = _blocks(data, generation, path, damages)
        return blocks if blocks.ops else blocks._replace(end=0)
    try:
        _check_owner(found, generation, path)
    except CorruptionError as error:
        damages.append(Damage(path, 0, len(data), error.message))
        return _Blocks([], generation, 0)
    if found & COUNT < generation & COUNT:
        return _Blocks([], generation, 0)
    if found & COUNT > generation & COUNT and not damages:
        checkpoint = os.path.join(os.path.dirname(path), CHECKPOINT)
        damages.append(Damage(checkpoint, 0, 0, f"the checkpoint of generation {found & COUNT} is missing"))
    # Without its checkpoint, a journal still says what was settled; everything before it is redelivered.
    return _blocks(data, found, path, damages)


def _is_unbegun(data: bytes, generation: int) -> bool:
    """Return whether a journal holds nothing yet: its first header was not written, or only its first bytes."""
    if generation & COUNT:
        return len(data) <= JOURNAL_HEADER.size and not any(data)
    part = len(data) < JOURNAL_HEADER.size and encode_journal_header(generation).startswith(data)
    return part or not any(data)


def _blocks(data: bytes, generation: int, path: str, damages: list[Damage]) -> _Blocks:
    """Return all valid blocks."""
    ops, end = decode_blocks(data, generation, path)
    missing, search = False, _BlockSearch(data, path)
    while (start := search.next(end, search.last, generation)) is not None:
        if _is_unwritten(data, end, start) or search.is_former(end, start, generation):
            # Of unsynced blocks, a power cut may leave a later one without an earlier one. The later one is valid all
            # the same, and stays until a checkpoint holds its operations.
            missing = True
        else:
            damages.append(Damage(path, end, start, "operations in the journal are not what was written"))
        more, end = decode_blocks(data, generation, path, start)
        ops += more
    if search.broken_off:
        damages.append(Damage(path, end, search.last, "too much in the journal looks like operations and is not"))
    return _Blocks(ops, generation, end, missing)


def _is_unwritten(data: bytes, end: int, start: int) -> bool:
    """Return whether the bytes between two valid blocks were not written, or only some of their sectors, over zeros.

    An ack of which only the last eight bytes are in another sector is the same with and without them.
    """
    if _UNWRITTEN in data[end:start]:
        return True
    first, last = (end // _SECTOR + 1) * _SECTOR, (start - 1) // _SECTOR * _SECTOR
    if last <= end:
        return False  # all of it is in one sector
    tail = data[last:start]
    return not any(data[end:first]) or (
        not any(tail) and (len(tail) > _VALUE_BYTES or data[start - _OP_BYTES] in _VALUED)
    )


class _BlockSearch:
    """A search for valid blocks in a journal, wherever they begin."""

    def __init__(self, data: bytes, path: str) -> None:
        self._data = data
        self._path = path
        self.last: int = written_size(data)
        # In a hostile file each few bytes may look like the start of a block that is as long as the file.
        self._left = _CHECKED

    @property
    def broken_off(self) -> bool:
        """Whether not all was searched."""
        return self._left <= 0

    def next(self, end: int, last: int, generation: int) -> int | None:
        """Return the position of the next valid block after an invalid one and before `last`, or None."""
        data, at = self._data, end + ALIGNMENT
        while at < last:
            length = int.from_bytes(data[at : at + 4], "little")
            stop = at + _BLOCK_START + length
            if not length:
                written = _WRITTEN.search(data, at + ALIGNMENT)
                if written is None:
                    return None
                at = written.start() - (written.start() - at) % ALIGNMENT
                continue
            # The first operation of a block begins with its kind, which is not zero.
            if not length % _OP_BYTES and stop <= len(data) and data[at + _BLOCK_START] and self._left > 0:
                self._left -= length
                if decode_blocks(data[at:stop], generation, self._path, 0)[0]:
                    return at
            at += ALIGNMENT
        return None

    def is_former(self, end: int, start: int, generation: int) -> bool:
        """Return whether what is between two valid blocks is of the previous journal: a fold's zeros were lost."""
        return bool(generation & COUNT) and self.next(end - ALIGNMENT, start, generation - 1) is not None
