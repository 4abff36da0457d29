"""What a newer aiodq wrote is left alone, all of it: the store is refused before any of its files is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.errors import FormatVersionError
from aiodq.format.segment import SegmentHeader
from aiodq.storage.state.json_file import encode_checked
from aiodq.storage.state.store_identity import STORE_FILE
from tests.storage.logs import overwrite, segments, tree
from tests.storage.stores import BREAKS, LEFTOVERS, a_store
from tests.storage.test_damage import newer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _newer_segment(store: Path) -> None:
    path = segments(store / "u")[0]
    header = SegmentHeader.decode(path.read_bytes())
    changed = SegmentHeader(header.base, header.topic, header.created_ns, header.salt, header.checksum, version=2)
    overwrite(path, 0, changed.encode())


def _newer_store(store: Path) -> None:
    (store / STORE_FILE).write_bytes(encode_checked("store", 2, {"uuid": "of another form"}))


NEWER: dict[str, Callable[[Path], None]] = {
    "store": _newer_store,
    "description": lambda store: newer(store / "u" / "topic.json"),
    "segment": _newer_segment,
    "journal": lambda store: newer(store / "t/channels/two/journal"),
    "checkpoint": lambda store: newer(store / "t/channels/two/checkpoint"),
}


@pytest.mark.parametrize("make_newer", NEWER.values(), ids=NEWER)
async def test_one_newer_file_anywhere_keeps_all_others_untouched(
    tmp_path: Path, make_newer: Callable[[Path], None]
) -> None:
    store = tmp_path / "store"
    a_store(store)
    # Work for recovery, in what would be opened before the newer file is met.
    BREAKS["a flipped bit in a sealed segment"](store)
    BREAKS["a flipped bit in a journal"](store)
    LEFTOVERS["an unfinished write"](store)
    LEFTOVERS["an unfinished file"](store)
    (store / "gone#deleted").mkdir()
    make_newer(store)
    before = tree(store)
    with pytest.raises(FormatVersionError):
        await aiodq.open(store)
    after = tree(store)
    after.pop("LOCK", None)
    assert after == before
    assert (store / "gone#deleted").exists()


async def test_a_version_that_only_damage_made_is_damage(tmp_path: Path) -> None:
    store = tmp_path / "store"
    a_store(store)
    for path in (store / "t/channels/two/journal", store / "t/channels/two/checkpoint", segments(store / "u")[0]):
        overwrite(path, 8, b"\x07")
    async with aiodq.open(store) as opened:
        assert len([message async for message in opened.topic("u").scan()]) == 3
