"""Opening a shared store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.shared.client.remote_store import RemoteStore
from aiodq.shared.handles import SharedStore

if TYPE_CHECKING:
    from aiodq.engine.store.store_engine import Seams
    from aiodq.options import StoreOptions

__all__ = ["open_shared"]


async def open_shared(
    path: str, options: StoreOptions | None, seams: Seams, *, may_own: bool, create: bool, failover: float
) -> SharedStore:
    """Open a store that others may have open, too.

    Args:
        path: its directory.
        options: as for `aiodq.open`.
        seams: the file system and the clocks.
        may_own: whether this process may own the store if nobody else does.
        create: whether a missing store is created.
        failover: seconds to look for an owner.

    Raises:
        StoreNotFoundError: there is none, and none is to be created.
        OwnerLostError: nobody serves it, and this process may not.
        StoreLockedError: it has an owner that serves nobody.
        ProtocolError: the process found is not an owner.
        InvalidOptionError: the options differ from the owner's.
        StorageError: as mapped from the system's error.
    """
    store = RemoteStore(path, options, seams, create=create, failover=failover)
    await store.open(may_own=may_own)
    return SharedStore(store)
