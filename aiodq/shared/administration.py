"""Requests that only the command line makes of a shared store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiodq.shared.encoding.answers import read_visitors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.shared.handles.shared_store import SharedStore

__all__ = ["look_anew", "serves", "visitors_of"]


async def look_anew(store: SharedStore) -> None:
    """Request the owner's report on the whole store, from which `stats` and the like answer.

    Raises:
        AiodqError: there is no owner to ask.

    Cancellation: nothing changes.
    """
    store._remote.check()  # noqa: SLF001 - one store in two modules
    await store._remote.report.look_once()  # noqa: SLF001 - as above


async def visitors_of(store: SharedStore) -> Mapping[str, Any]:
    """Return which processes have the store open, this one included; see `ask_visitors`.

    Raises:
        AiodqError: there is no owner to ask.

    Cancellation: nothing changes.
    """
    store._remote.check()  # noqa: SLF001 - as above
    return await store._remote.link.result("who", read_visitors)  # noqa: SLF001 - as above


def serves(store: SharedStore) -> bool:
    """Return whether this process owns the store and serves it. Pids cannot tell: two containers may use the same."""
    return store._remote.owner is not None  # noqa: SLF001 - as above
