"""`aiodq who`: which process owns a store, and which have it open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE
from aiodq.cli.loop import run_command
from aiodq.cli.show import counted, figures_table, print_json, stdout
from aiodq.errors import OwnerLostError
from aiodq.shared.requests.owner_state.visitors import ask_visitors
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.lock import LockHolder, lock_holder
from aiodq.storage.store_layout import check_store_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["facts_of", "table", "who"]


def who(store: Place, /, *, json: bool = False) -> int:
    """Show which process owns a store, how late its event loop is, and which others have it open and hold messages.

    Readers (stat, tail, Spark) need no owner, and are not shown.

    Args:
        store: the store's directory.
        json: print it as JSON.
    """
    check_store_directory(OsFileSystem(), store)

    async def go() -> int:
        facts = await facts_of(store)
        if json:
            print_json(facts, indent=None)
        else:
            stdout().print(table(facts))
        return DONE

    return run_command(go())


async def facts_of(store: str) -> Mapping[str, Any]:
    """Return which processes have a store open, as `ask_visitors` does; `owner` is None if there is none.

    An owner in mode "exclusive" has `"exclusive": true`, and no `lag`; `host` only if it is elsewhere.

    Raises:
        OwnerStalledError: its owner does not answer.
        StorageError: as mapped from the system's error.
    """
    try:
        return await ask_visitors(store)
    except OwnerLostError:
        holder = lock_holder(store)
        return {"owner": holder and _exclusive(holder), "clients": []}


def _exclusive(holder: LockHolder) -> Mapping[str, Any]:
    facts = {"pid": holder.pid, "exclusive": True}
    return {**facts, "host": holder.host} if holder.host else facts


def table(facts: Mapping[str, Any]) -> RenderableType:
    """Return the processes that have a store open, as text."""
    owner = facts["owner"]
    if owner is None:
        return "no process has it open"
    if "lag" not in owner:
        return f"{LockHolder(owner['pid'], owner.get('host', ''))} has it for itself"
    others = [client for client in facts["clients"] if not client["owner"]]
    late = f"its loop is {owner['lag'] * 1000:.0f} ms late"
    number = len(others) + facts["unlisted"]
    head = f"process {owner['pid']} owns it and serves {counted(number, 'other')}; {late}"
    rows = [
        (str(client["pid"]), "owner" if client["owner"] else "client", client["program"], _held(client["holds"]))
        for client in facts["clients"]
    ]
    more = (f"and {counted(facts['unlisted'], 'other')}",) if facts["unlisted"] else ()
    return Group(head, figures_table(("process", "is", "program", "in flight"), rows), *more) if rows else head


def _held(holds: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} of {name}" for name, number in sorted(holds.items())) or "-"
