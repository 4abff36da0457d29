"""What a stream asks its stores to keep for it: one hold by name, in each store that it reads."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aiodq.errors import InvalidOptionError, OffsetError
from aiodq.spark.planning import matching
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import Hold, read_hold, write_hold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["StreamHold", "keep", "wait_until_known"]

Offsets = dict[str, dict[str, int]]
"""By store, and in it by topic."""

_UNTIL_KNOWN: Final = 1.0
"""Seconds after which an owner that has looked for holds before one was made deletes nothing by that any more."""


def keep(store: str, name: str, hold: Hold) -> None:
    """Write a hold of a store, durably; its path may be a link, which is followed here as `aiodq.open` does. Blocking.

    Raises:
        StorageError: the earlier hold stands.
    """
    write_hold(OsFileSystem(), os.path.realpath(store), name, hold)


def wait_until_known() -> None:
    """Wait until an owner deletes nothing any more that a hold keeps which was made just now. Blocking."""
    time.sleep(_UNTIL_KNOWN)


class StreamHold:
    """The hold of one query. Nothing is looked at before it is asked for."""

    def __init__(self, name: str, stores: Sequence[str], patterns: tuple[str, ...] | None) -> None:
        """Keep topics of these names and patterns, all where None, under this name."""
        self._name = name
        self._stores = stores
        self._patterns = patterns

    def begin(self, start: Mapping[tuple[str, str], int]) -> None:
        """Keep what a query that begins is to read. Blocking.

        Spark asks more than once where a query begins, until its first batch is finished: an earlier answer stands, as
        what it promised may be on record. So does a hold that is under way; whose it is, `require_own` finds out.

        Raises:
            StorageError: as mapped from the system's error.
        """
        for store, offsets in self._by_store(start).items():
            before = self._read(store) or Hold()
            if not before.under_way:
                earlier = {topic: min(offset, before.offsets.get(topic, offset)) for topic, offset in offsets.items()}
                self._write(store, Hold({**before.offsets, **earlier}, self._patterns))

    def require_own(self) -> None:
        """Make sure that no other query has come further, before a first batch is decided on. Blocking.

        Raises:
            InvalidOptionError: a query that is under way has a hold of that name.
            StorageError: as mapped from the system's error.
        """
        for store in self._stores:
            held = self._read(store)
            if held is not None and held.under_way:
                raise InvalidOptionError(
                    f"the hold {self._name!r} in {store!r} is another query's, or that of an earlier checkpoint: give "
                    f"this query a hold of another name; where nobody needs that one any more, "
                    f"aiodq holds {store} --release {self._name} lets go of it"
                )

    def mark(self) -> None:
        """Note that the query is under way: another one that begins is refused from here on. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        for store in self._stores:
            held = self._read(store)
            if held is not None and not held.under_way:
                self._write(store, replace(held, under_way=True))

    def move(self, offsets: Mapping[tuple[str, str], int]) -> None:
        """Let go what lies below these offsets, and topics that are not read any more. Blocking.

        Raises:
            StorageError: the earlier hold stands.
        """
        for store, found in self._by_store(offsets).items():
            covered = found if self._patterns is None else matching(found, self._patterns)
            kept = {topic: found[topic] for topic in covered}
            self._write(store, Hold(kept, self._patterns, under_way=True))

    def check(self, taken: Mapping[tuple[str, str], int], *, strict: bool, under_way: bool) -> None:
        """Make sure that what the query has still to read is kept. Blocking.

        Args:
            taken: up to where each topic was read, of those that are.
            strict: whether it is an error if it is not; else it is kept from here on.
            under_way: the query's first batch is finished.

        Raises:
            OffsetError: somebody released the hold, or another query moved it.
            StorageError: as mapped from the system's error.
        """
        for store, offsets in self._by_store(taken).items():
            held = self._read(store)
            reason = self._gone(held, offsets)
            if reason is not None and strict:
                raise OffsetError(
                    f"{reason}, so that messages which it has still to read may be gone, too: with "
                    f"failOnDataLoss=false it goes on with what there is, and holds that"
                )
            kept = held or Hold()
            if reason is not None:
                kept = replace(kept, offsets={**kept.offsets, **offsets})
            kept = replace(kept, patterns=self._patterns, under_way=kept.under_way or under_way)
            if kept != held:
                self._write(store, kept)

    def _gone(self, held: Hold | None, taken: Mapping[str, int]) -> str | None:
        if held is None:
            return f"the hold {self._name!r} is gone, or the query began without it"
        for topic, offset in taken.items():
            first = held.offsets.get(topic, 0)
            if first > offset:
                return (
                    f"the hold {self._name!r} keeps topic {topic!r} from {first} on, and the query has come to "
                    f"{offset}: another one of that hold has moved it (one name belongs to one query)"
                )
        return None

    def _by_store(self, offsets: Mapping[tuple[str, str], int]) -> Offsets:
        found: Offsets = {store: {} for store in self._stores}
        for (store, topic), offset in offsets.items():
            if store in found:
                found[store][topic] = offset
        return found

    def _read(self, store: str) -> Hold | None:
        return read_hold(OsFileSystem(), store, self._name)

    def _write(self, store: str, hold: Hold) -> None:
        keep(store, self._name, hold)
