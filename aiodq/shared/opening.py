"""Opening a store of which this process is one of many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.shared.handles import SharedStore
from aiodq.shared.remote_store import RemoteStore

if TYPE_CHECKING:
    from aiodq.engine.store_engine import Seams
    from aiodq.options import StoreOptions

__all__ = ["open_shared"]


async def open_shared(
    path: str, options: StoreOptions | None, seams: Seams, *, may_own: bool, create: bool, failover: float
) -> SharedStore:
    """Return a store that others may have open, too.

    Args:
        path: its directory.
        options: as for `aiodq.open`.
        seams: the file system and the clocks.
        may_own: this process owns the store where nobody else does.
        create: a store that is not there is made.
        failover: seconds to look for an owner.

    Raises:
        StoreNotFoundError: there is none, and none is to be made.
        OwnerLostError: nobody serves it, and this process is not to.
        StoreLockedError: somebody owns it who serves nobody.
        ProtocolError: who is found there is no owner.
        InvalidOptionError: these are other options than the owner's.
        StorageError: as mapped from the system's error.
    """
    store = RemoteStore(path, options, seams, create=create, failover=failover)
    await store.open(may_own=may_own)
    return SharedStore(store)
