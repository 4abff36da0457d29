"""The processes that have a store open: the owner knows them, and any process may ask."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiodq.shared.connection.link import Link
from aiodq.shared.encoding.answers import read_visitors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aiodq.wire.packets import Hello

__all__ = ["Visitor", "ask_visitors", "visitors"]

_LOOK: Final = 0.1
_MOST: Final = 56 * 1024
"""Bytes of JSON of the clients that are listed: a packet has up to 64 KiB."""

_CHANNELS: Final = 50
_PROGRAM: Final = 100
"""Channels that are named of one client, and characters of its program's name."""

_FAILOVER: Final = 0.3
_STALL: Final = 5.0
"""Seconds in which an owner has to be found and to answer."""


class Visitor(Protocol):
    """A client of an owner."""

    client: Hello | None

    def holds(self) -> Mapping[str, int]:
        """Return how many messages it holds, by `topic/channel`."""
        ...


async def visitors(pid: int, clients: Iterable[Visitor], asking: object, own: int) -> dict[str, Any]:
    """Return the owner of a store, and the processes that have it open, as JSON.

    Args:
        pid: the owner's process.
        clients: the connected clients.
        asking: the number of the client that asks, which is left out.
        own: the number of the owner's own client; its pid may be equal in two containers.

    Returns:
        See `ask_visitors`.
    """
    known = [(each.client, each.holds()) for each in clients if each.client is not None]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(_LOOK)
    rows = [
        {"pid": hello.pid, "program": hello.program[:_PROGRAM], "owner": hello.producer == own, "holds": _most(holds)}
        for hello, holds in sorted(known, key=lambda each: (each[0].producer != own, each[0].pid))
        if hello.producer != asking
    ]
    listed = _fitting(rows)
    return {
        "owner": {"pid": pid, "host": socket.gethostname(), "lag": max(0.0, loop.time() - began - _LOOK)},
        "clients": listed,
        "unlisted": len(rows) - len(listed),
    }


def _most(holds: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of messages held of the channels with most, and the total of all others."""
    found = sorted(holds.items(), key=lambda each: -each[1])
    rest = sum(number for _, number in found[_CHANNELS:])
    return dict(found[:_CHANNELS]) | ({"…": rest} if rest else {})


def _fitting(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return as many rows from the first on as fit into a packet."""
    size, listed = 0, []
    for row in rows:
        size += len(json.dumps(row, separators=(",", ":"))) + 1
        if size > _MOST:
            break
        listed.append(row)
    return listed


async def ask_visitors(path: str) -> Mapping[str, Any]:
    """Ask the owner of a store which processes have it open.

    Args:
        path: the store's directory.

    Returns:
        `owner` (`pid`, `host`, and `lag`, the seconds by which its event loop is late) and `clients` (`pid`, `program`,
        `owner`: whether it is the owner itself, and `holds`: messages in flight by `topic/channel`, for the 50 with
        most, and for all others as `…`), and `unlisted`, the number of clients for which the answer has no room.

    Raises:
        OwnerLostError: no process serves it.
        OwnerStalledError: its owner does not answer.
        ProtocolError: the process found is not an owner.
        StorageError: as mapped from the system's error.

    Cancellation: nothing changes.
    """
    link = Link(path, _never, failover=_FAILOVER, stall=_STALL)
    try:
        await link.start()
        found = await link.result("who", read_visitors, {"asking": link.producer})
    finally:
        await link.close()
    return found


async def _never() -> bool:
    """Return False: the caller does not want to own the store."""
    return False
