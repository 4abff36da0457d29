"""Checks of names given to a command: the topic or channel exists, or the error suggests a similar one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from aiodq.cli.exits import CommandError
from aiodq.names import check_name, is_ephemeral
from aiodq.opening import open_reader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiodq.storage.offline.store_reader import TopicReader

__all__ = ["known_channel", "known_topic"]

_SHOWN: Final = 10


def known_topic(store: str, name: str) -> TopicReader:
    """Return the reader of a topic.

    Raises:
        CommandError: there is none of that name, it says which there are; or it is an ephemeral one.
        StorageError: as `open_reader`.
    """
    reader = open_reader(store)
    check_name(name)
    names = reader.topics()
    if is_ephemeral(name):
        raise CommandError(f"topic {name!r} is kept in the memory of a store's owner, where no command can look")
    if name not in names:
        raise CommandError(f"there is no topic {name!r} in {store}{_instead(name, names)}")
    return reader.topic(name)


def known_channel(store: str, topic: TopicReader, name: str) -> str:
    """Return the name of a channel.

    Raises:
        CommandError: there is none of that name; it says which there are, and how one is made.
    """
    check_name(name, "channel")
    names = topic.channels()
    if name not in names:
        how = f"; aiodq channels {store} {topic.name} --create {name} makes it"
        raise CommandError(f"topic {topic.name!r} has no channel {name!r}{_instead(name, names)}{how}")
    return name


def _instead(name: str, known: Iterable[str]) -> str:
    """Return the nearest name and all others, to go on a sentence with."""
    names = sorted(known)
    if not names:
        return ": there is none yet"
    close = difflib.get_close_matches(name, names, 1)
    meant = f"; did you mean {close[0]!r}?" if close else ";"
    more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{meant} there {'is' if len(names) == 1 else 'are'} {', '.join(names[:_SHOWN])}{more}"
