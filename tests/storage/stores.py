"""A store with everything in it, and every way the tests break one."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from aiodq.format.journal import ChannelImage, Op, OpKind
from aiodq.format.layout import FOOTER_TAIL, SEGMENT_HEADER
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.testing import WatchedFileSystem
from tests.storage.logs import flip, open_log, overwrite, put, put_each, segments, tree

if TYPE_CHECKING:
    from collections.abc import Callable


def a_store(directory: Path) -> None:
    """Make two topics: `t` with seven segments, a run and two channels, `u` with one segment."""
    for name, data in _files().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@cache
def _files() -> dict[str, bytes]:
    """Return the files of that store: to write them anew is cheaper than to make it anew."""
    with tempfile.TemporaryDirectory() as made:
        _make(Path(made))
        return tree(Path(made))


def _make(directory: Path) -> None:
    log = open_log(directory / "t", segment_bytes=528)
    put_each(log, [bytes([65 + n]) * 50 for n in range(8)])
    put(log, [bytes([n]) * 30_000 for n in range(5)], atomic=True)
    put_each(log, [bytes([97 + n]) * 50 for n in range(8)])
    (directory / "t" / "channels").mkdir()
    for name, floor in (("one", 2), ("two", 0)):
        log.description.add_channels({name: (0, None)})
        journal = ChannelJournal(WatchedFileSystem(), str(directory / "t" / "channels" / name), 0)
        journal.fold(ChannelImage(floor, [(14, 16)]))
        journal.append([Op(OpKind.ACK, 17)])
        journal.append([Op(OpKind.ACK, 19)])
        journal.close()
    log.close()
    log = open_log(directory / "u")
    put_each(log, [b"u"] * 3)
    log.close()


COUNT = 21
"""Messages in the topic `t` of `a_store`."""


def data_end(path: Path) -> int:
    """Return where a sealed segment's frames end."""
    data = path.read_bytes()
    return int.from_bytes(data[-FOOTER_TAIL.size :][:8], "little")


def _segment(number: int) -> Callable[[Path], Path]:
    return lambda store: segments(store / "t")[number]


def _lose_footer(store: Path) -> None:
    path = _segment(1)(store)
    os.truncate(path, data_end(path))


def _tear_tail(store: Path) -> None:
    with _segment(-1)(store).open("ab") as file:
        file.write(b"unfinished write")


def _swap(name: str) -> Callable[[Path], object]:
    return lambda store: shutil.copy(store / "u" / name, store / "t" / name)


def _lose_promised_tail(store: Path) -> None:
    os.truncate(_segment(-1)(store), SEGMENT_HEADER.size + 30)


def _lose_all(store: Path) -> None:
    for path in segments(store / "t"):
        path.unlink()


def _begin_a_segment(store: Path) -> None:
    log = open_log(store / "t")
    log.roll()
    log.abandon()
    os.truncate(_segment(-1)(store), 10)


BREAKS: dict[str, Callable[[Path], object]] = {
    "a flipped bit in a sealed segment": lambda store: flip(_segment(0)(store), 100, 2),
    "a flipped bit in the last record of a sealed segment": lambda store: flip(
        _segment(0)(store), data_end(_segment(0)(store)) - 20, 2
    ),
    "a flipped bit in a run": lambda store: flip(_segment(3)(store), 50_000, 2),
    "a flipped bit in the segment being written": lambda store: flip(_segment(-1)(store), 100, 2),
    "a flipped bit in the newest record": lambda store: flip(_segment(-1)(store), -10, 2),
    "a zeroed sector": lambda store: overwrite(_segment(0)(store), 128, bytes(100)),
    "a whole segment of zeros": lambda store: _segment(1)(store).write_bytes(bytes(_segment(1)(store).stat().st_size)),
    "a header that is gone": lambda store: overwrite(_segment(1)(store), 0, b"\xff" * 64),
    "the header of the segment being written": lambda store: overwrite(_segment(-1)(store), 0, b"\xff" * 64),
    "a footer that is gone": _lose_footer,
    "a flipped bit in a footer's tail": lambda store: flip(_segment(1)(store), -30, 2),
    "a flipped bit in an index": lambda store: flip(_segment(1)(store), data_end(_segment(1)(store)) + 2, 2),
    "a missing segment": lambda store: _segment(1)(store).unlink(),
    "a missing first segment": lambda store: _segment(0)(store).unlink(),
    "a missing last segment": lambda store: _segment(-1)(store).unlink(),
    "no segment at all": _lose_all,
    "a promised tail that is gone": _lose_promised_tail,
    "a copy of a segment": lambda store: shutil.copy(_segment(0)(store), store / "t" / f"{500:020d}.seg"),
    "junk under a segment's name": lambda store: (store / "t" / f"{500:020d}.seg").write_bytes(b"junk" * 50),
    "another topic's segment": lambda store: shutil.copy(segments(store / "u")[0], _segment(1)(store)),
    "a description that is gone": lambda store: (store / "t" / "topic.json").unlink(),
    "a description of junk": lambda store: (store / "t" / "topic.json").write_bytes(b"junk"),
    "another topic's description": _swap("topic.json"),
    "a watermark of junk": lambda store: (store / "t" / "watermark").write_bytes(random.Random(1).randbytes(8192)),
    "another topic's watermark": _swap("watermark"),
    "junk in place of what says which store it is": lambda store: (store / "#store").write_bytes(b"junk"),
    "a checkpoint of junk": lambda store: (store / "t/channels/one/checkpoint").write_bytes(b"junk"),
    "a checkpoint that is gone": lambda store: (store / "t/channels/one/checkpoint").unlink(),
    "a journal that is gone": lambda store: (store / "t/channels/one/journal").unlink(),
    "a journal of junk": lambda store: (store / "t/channels/two/journal").write_bytes(b"junk" * 30),
    "a flipped bit in a journal": lambda store: flip(store / "t/channels/two/journal", 40, 1),
    "another channel's journal": lambda store: shutil.copy(
        store / "t/channels/one/journal", store / "t/channels/two/journal"
    ),
}
"""What `verify` has to call damage, and `repair` has to settle."""

LEFTOVERS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "an unfinished write": _tear_tail,
    "an unfinished file": lambda store: (store / "t" / "topic.json.aiodq-tmp").write_bytes(b"half"),
    "an unfinished file in a channel": lambda store: (store / "t/channels/one/checkpoint.aiodq-tmp").write_bytes(
        b"half"
    ),
    "an unfinished file of the store": lambda store: (store / "x.aiodq-tmp").write_bytes(b"half"),
    "an unfinished block": lambda store: (store / "t/channels/one/journal").write_bytes(
        (store / "t/channels/one/journal").read_bytes() + b"torn"
    ),
    "a segment that had just begun": _begin_a_segment,
    "a watermark that is gone": lambda store: (store / "t" / "watermark").unlink(),
    "a watermark of zeros": lambda store: (store / "t" / "watermark").write_bytes(bytes(8192)),
    "an empty watermark": lambda store: (store / "t" / "watermark").write_bytes(b""),
    "a torn slot": lambda store: flip(store / "t" / "watermark", 4096 + 10, 1),
    "files of others": lambda store: (store / "t" / "notes.txt").write_bytes(b"mine"),
}
"""What is nothing wrong."""
