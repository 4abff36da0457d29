"""`aiodq serve`: a process that only owns a store, and serves it to other processes."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, cast

from cyclopts import Parameter, validators
from rich.live import Live

from aiodq.cli.arguments import Place
from aiodq.cli.commands.who import table
from aiodq.cli.exits import DONE, forget
from aiodq.cli.loop import run_command
from aiodq.cli.opening import check_parent
from aiodq.cli.show import counted, print_json, stdout
from aiodq.cli.warned import warnings_shown
from aiodq.errors import OwnerLostError, OwnerStalledError
from aiodq.opening import open_to_tend
from aiodq.shared.administration import serves, visitors_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from aiodq.shared.handles.shared_store import SharedStore

__all__ = ["serve"]

_LOOK: Final = 1.0
"""Seconds between two looks at the owner and the clients."""


def serve(
    store: Place,
    /,
    *,
    create: bool = False,
    failover: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 30.0,
    json: bool = False,
) -> int:
    """Own a store and serve it, over a Unix socket in its directory, to programs that open it with mode="shared".

    A program that owns a store itself delays all others whenever it blocks its event loop; this process does nothing
    else. If another process owns the store already, this one waits, and takes over when that one ends. At SIGTERM and
    Ctrl-C it ends in order: what was accepted is on disk, and another program in mode "shared" takes over. It keeps
    serving if its output can no longer be written.

    Args:
        store: the store's directory.
        create: create a missing store.
        failover: seconds to look for an owner, if this process cannot become it, before giving up.
        json: print the owner as lines of JSON, now and whenever it changes.
    """
    if create:
        check_parent(store)
    return run_command(_Serving(store, json=json).run(create=create, failover=failover))


class _Serving:
    """One run."""

    def __init__(self, store: str, *, json: bool) -> None:
        self._store = store
        self._json = json
        self._owner: tuple[int, bool] | None = None

    async def run(self, *, create: bool, failover: float) -> int:
        opening = open_to_tend(self._store, create=create, mode="shared", failover=failover)
        with warnings_shown():  # such as that it waits for a process that does not share the store
            opened = await opening
        async with opened:
            with suppress(asyncio.CancelledError):  # a signal: the end that is meant
                await self._watch(cast("SharedStore", opened))
        self._say({"store": self._store, "ended": True}, f"no longer serving {self._store}")
        return DONE

    async def _watch(self, store: SharedStore) -> None:
        """Report the owner whenever it changes; on a terminal, also the clients, updated in place."""
        console = stdout()
        if self._json or not console.is_terminal:
            while True:
                self._tell(store, await _look(store))
                await asyncio.sleep(_LOOK)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                facts = await _look(store)
                if facts is not None:
                    live.update(table(facts), refresh=True)
                self._tell(store, facts)
                await asyncio.sleep(_LOOK)

    def _tell(self, store: SharedStore, facts: Mapping[str, Any] | None) -> None:
        owner = None if facts is None else facts["owner"]
        if facts is None or owner is None:
            return
        pid = owner["pid"]
        # Not by the pid alone: processes in two containers may have the same.
        serving = serves(store) and pid == os.getpid()
        if self._owner == (pid, serving):
            return
        self._owner = pid, serving
        others = sum(not client["owner"] for client in facts["clients"]) + facts["unlisted"]
        if serving:
            text = f"serving {self._store} as process {pid}, {counted(others, 'other')} there"
        else:
            text = f"process {pid} owns {self._store}; this one takes over when it ends"
        self._say({"store": self._store, "owner": pid, "serving": serving}, text)

    def _say(self, facts: Mapping[str, Any], text: str) -> None:
        try:
            if self._json:
                print_json(facts, indent=None)
            else:
                stdout().print(text)
            stdout().file.flush()
        except OSError:
            forget(sys.stdout)  # a closed pipe or a full disk is no reason to stop serving


async def _look(store: SharedStore) -> Mapping[str, Any] | None:
    """Return the owner and the clients, or None between two owners, while the store looks for one."""
    with suppress(OwnerLostError, OwnerStalledError):
        return await visitors_of(store)
    return None
