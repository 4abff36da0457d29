"""Holds: messages that a reader other than a channel, such as Spark, asks an owner to keep: `#holds/NAME.json`.

A hold acts like a channel that has consumed everything below an offset: later messages are deleted only if retention is
told to delete unconsumed messages, by a purge, or to make room. It stays until its reader advances it or it is
released, however long nothing is read; `aiodq holds` shows all holds.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from aiodq.errors import CorruptionError, FormatVersionError, InvalidOptionError
from aiodq.storage.io.durable_io import ensure_directory, list_own, read_file, replace_file
from aiodq.storage.io.filesystem import locked_in_turn
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.state.json_file import decode_checked, encode_checked, taking_apart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.storage.io.filesystem import FileSystem

__all__ = [
    "HOLDS",
    "Hold",
    "decode_hold",
    "held_by",
    "hold_path",
    "read_hold",
    "read_holds",
    "release_hold",
    "write_hold",
]

HOLDS: Final = "#holds"
"""The directory of holds. No topic may have this name."""

_VERSION: Final = 1
_LONGEST: Final = 150
_NAME: Final = re.compile(r"[^.].*\.json")


@dataclass(frozen=True, slots=True)
class Hold:
    """The offsets that a reader asks to keep.

    Attributes:
        offsets: by topic, the first offset to keep.
        patterns: name patterns of further topics to keep whole; None for every topic.
        under_way: whether its reader has made progress: a reader that only begins is then another one.
    """

    offsets: Mapping[str, int] = field(default_factory=dict)
    patterns: tuple[str, ...] | None = ()
    under_way: bool = False

    def first(self, topic: str) -> int | None:
        """Return the first offset of a topic to keep, or None if the hold does not cover the topic."""
        if topic in self.offsets:
            return self.offsets[topic]
        held = self.patterns is None or any(fnmatchcase(topic, pattern) for pattern in self.patterns)
        return 0 if held else None


def held_by(name: str) -> str:
    """Return the name of a hold among those of channels."""
    return f"hold {name}"


def decode_hold(data: bytes, path: str) -> Hold:
    """Decode a hold's file.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
    """
    found = decode_checked(data, "hold", _VERSION, path, "the hold")
    with taking_apart(path, "the hold"):
        patterns = found["patterns"]
        offsets = {str(topic): int(offset) for topic, offset in found["offsets"].items()}
        under_way = bool(found.get("under_way", False))
        return Hold(offsets, None if patterns is None else tuple(map(str, patterns)), under_way)


def write_hold(fs: FileSystem, store: str, name: str, hold: Hold) -> None:
    """Write a hold durably, replacing any of the same name; writers of a store's holds take turns. Blocking.

    Raises:
        InvalidOptionError: the name is empty or too long.
        StoreLockedError: others are still writing holds, after some seconds; the earlier hold stands.
        StorageError: the earlier hold stands.
    """
    path, directory = hold_path(store, name), os.path.join(store, HOLDS)
    ensure_directory(fs, directory)
    content: dict[str, object] = {"offsets": hold.offsets, "patterns": hold.patterns}
    if hold.under_way:
        content["under_way"] = True
    # Two at once would write, rename and remove each other's temporary file.
    lock = locked_in_turn(fs, directory)
    try:
        replace_file(fs, path, encode_checked("hold", _VERSION, content))
    finally:
        lock.release()


def read_hold(fs: FileSystem, store: str, name: str) -> Hold | None:
    """Return the hold of that name, or None if there is none. Blocking.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    path = hold_path(store, name)
    data = read_file(fs, path)
    return None if data is None else decode_hold(data, path)


def read_holds(fs: FileSystem, store: str) -> dict[str, Hold]:
    """Return the holds by name. An unreadable one keeps everything until it is released. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    directory = os.path.join(store, HOLDS)
    found: dict[str, Hold] = {}
    for file in list_own(fs, directory):
        if _NAME.fullmatch(file):
            name = unquote(file.removesuffix(".json"))
            try:
                hold = read_hold(fs, store, name)
            except (CorruptionError, FormatVersionError):
                hold = Hold(patterns=None)
            if hold is not None:
                found[name] = hold
    return found


def release_hold(fs: FileSystem, store: str, name: str) -> bool:
    """Delete a hold; return whether there was one. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    path = hold_path(store, name)
    with os_errors(path), suppress(FileNotFoundError):
        fs.remove(path)
        return True
    return False


def hold_path(store: str, name: str) -> str:
    """Return the path of a hold's file.

    Raises:
        InvalidOptionError: the name is empty or too long.
    """
    quoted = quote(name, safe="")
    if not 0 < len(quoted) <= _LONGEST or quoted.startswith("."):
        raise InvalidOptionError(f"{name!r:.80} is no name for a hold: 1 to {_LONGEST} characters, the first no dot")
    return os.path.join(store, HOLDS, f"{quoted}.json")
