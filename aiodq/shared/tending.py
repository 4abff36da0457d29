"""Requests that only the command line makes of a shared store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodq.shared.encoding.answers import read_visitors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.shared.handles import SharedStore

__all__ = ["look_anew", "serves", "visitors_of"]


async def look_anew(store: SharedStore) -> None:
    """Request the owner's report on the whole store, from which `stats` and the like answer.

    Raises:
        AiodqError: there is no owner to ask.

    Cancellation: nothing changes.
    """
    store._remote.check()  # noqa: SLF001 - one store in two modules
    await store._remote.look_once()  # noqa: SLF001 - as above


async def visitors_of(store: SharedStore) -> Mapping[str, Any]:
    """Return who has the store open, as `aiodq.shared.requests.visitors.ask_visitors` does; this process included.

    Raises:
        AiodqError: there is no owner to ask.

    Cancellation: nothing changes.
    """
    store._remote.check()  # noqa: SLF001 - as above
    return await store._remote.link.result("who", read_visitors)  # noqa: SLF001 - as above


def serves(store: SharedStore) -> bool:
    """Return whether this process owns the store and serves it: the owner's pid may be equal in two containers."""
    return store._remote.owner is not None  # noqa: SLF001 - as above
