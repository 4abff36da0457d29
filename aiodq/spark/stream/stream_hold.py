"""The hold of a stream: a hold of one name in each store that it reads, which keeps what it has not read yet."""

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
"""Offsets by topic, by store."""

_UNTIL_KNOWN: Final = 1.0
"""Seconds after which an owner no longer deletes anything because of a look for holds before this one was made."""


def keep(store: str, name: str, hold: Hold) -> None:
    """Write a hold of a store, durably. The path may be a link, which is followed as by `aiodq.open`. Blocking.

    Raises:
        StorageError: the earlier hold stands.
    """
    write_hold(OsFileSystem(), os.path.realpath(store), name, hold)


def wait_until_known() -> None:
    """Wait until an owner certainly respects a hold that was just made. Blocking."""
    time.sleep(_UNTIL_KNOWN)


class StreamHold:
    """The hold of one query. Making this object does no I/O."""

    def __init__(self, name: str, stores: Sequence[str], patterns: tuple[str, ...] | None) -> None:
        """Set the name of the hold, and the names and patterns of its topics; None for all."""
        self._name = name
        self._stores = stores
        self._patterns = patterns

    def begin(self, start: Mapping[tuple[str, str], int]) -> None:
        """Keep what a new query is to read. Blocking.

        Spark asks more than once where a query begins, until its first batch is finished. An earlier answer stands, as
        Spark may have recorded it. So does a hold that is in use; `require_own` checks whose it is.

        Raises:
            StorageError: as mapped from the system's error.
        """
        for store, offsets in self._by_store(start).items():
            before = self._read(store) or Hold()
            if not before.under_way:
                earlier = {topic: min(offset, before.offsets.get(topic, offset)) for topic, offset in offsets.items()}
                self._write(store, Hold({**before.offsets, **earlier}, self._patterns))

    def require_own(self) -> None:
        """Make sure, before the first batch, that the hold is not in use by another query. Blocking.

        Raises:
            InvalidOptionError: another query uses a hold of this name.
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
        """Mark the hold as in use: a new query of the same hold is refused from now on. Blocking.

        Raises:
            StorageError: as mapped from the system's error.
        """
        for store in self._stores:
            held = self._read(store)
            if held is not None and not held.under_way:
                self._write(store, replace(held, under_way=True))

    def move(self, offsets: Mapping[tuple[str, str], int]) -> None:
        """Release what is below these offsets, and topics that are no longer read. Blocking.

        Raises:
            StorageError: the earlier hold stands.
        """
        for store, found in self._by_store(offsets).items():
            covered = found if self._patterns is None else matching(found, self._patterns)
            kept = {topic: found[topic] for topic in covered}
            self._write(store, Hold(kept, self._patterns, under_way=True))

    def check(self, taken: Mapping[tuple[str, str], int], *, strict: bool, under_way: bool, again: bool) -> None:
        """Make sure that what the query has still to read is kept. Blocking.

        Args:
            taken: the offset up to which each topic was read.
            strict: whether it is an error if something is not kept; otherwise it is kept from now on.
            under_way: whether the query's first batch is finished.
            again: whether its reader has checked before, so that the hold's topics are its own.

        Raises:
            OffsetError: somebody released the hold, or another query moved it.
            InvalidOptionError: another query, or another source of this one, uses it for other topics.
            StorageError: as mapped from the system's error.
        """
        for store, offsets in self._by_store(taken).items():
            held = self._read(store)
            if again and held is not None and held.patterns != self._patterns:
                raise InvalidOptionError(
                    f"the hold {self._name!r} in {store!r} is used for other topics, too, and keeps only those: give "
                    f"each query, and each source of one query, a hold of another name"
                )
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
