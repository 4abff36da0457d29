"""`aiodq holds`: the messages that a store keeps for readers that are not channels, such as Spark's streams."""

from __future__ import annotations

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE, WRONG, complain
from aiodq.cli.show import counted, print_json, stdout
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.state.holds import read_holds, release_hold
from aiodq.storage.store_layout import check_store_directory

__all__ = ["holds"]


def holds(store: Place, /, *, release: str | None = None, json: bool = False) -> int:
    """Show a store's holds, or release one. The store may be open in another process.

    Messages that only a released hold kept are deleted; a query that still needs them ends with an error.

    Args:
        store: the store's directory.
        release: the name of the hold to release.
        json: print them as JSON.
    """
    fs = OsFileSystem()
    check_store_directory(fs, store)
    if release is not None:
        if release_hold(fs, store, release):
            stdout().print(f"released {release}")
            return DONE
        complain(f"there is no hold {release!r}")
        return WRONG
    found = read_holds(fs, store)
    if json:
        print_json(found)
        return DONE
    for name, hold in sorted(found.items()):
        for topic, offset in sorted(hold.offsets.items()):
            stdout().print(f"{name}: keeps {topic} from offset {offset} on")
        if hold.patterns is None:
            stdout().print(f"{name}: keeps every {'other ' * bool(hold.offsets)}topic")
        elif not hold.offsets:
            stdout().print(f"{name}: keeps all of {counted(len(hold.patterns), 'pattern')}: {', '.join(hold.patterns)}")
    return DONE
