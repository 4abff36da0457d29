"""Which calls of the disk fail, drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.testing import Fault
from aiodq.testing.faults import CALLS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from aiodq.testing import Call
    from aiodq.testing.faults import Pages

__all__ = ["drawn_faults"]

_NAMING: Final[tuple[Call, ...]] = ("create", "rename", "remove", "make_directory", "remove_directory", "truncate")
_ALL: Final = tuple(call for call in CALLS if call != "lock")
_KINDS: Final[tuple[tuple[Call, ...], ...]] = (("write",), ("sync",), ("write", "create"), _NAMING, _ALL)
"""Which calls fail together: those of a full disk, of a broken one, or any."""

_SPACE: Final = frozenset({"create", "write", "make_directory", "rename", "truncate"})
_LASTING: Final = 0.4
_APPENDED: Final = ("/a/", "/b/", "/c/", "/d/", "#transactions")


def drawn_faults(rng: Random) -> list[Fault]:
    """Return one to three faults of a kind."""
    calls = rng.choice(_KINDS)
    return [_drawn(rng, calls) for _ in range(rng.randint(1, 3))]


def _drawn(rng: Random, calls: Sequence[Call]) -> Fault:
    call = rng.choice(calls)
    error = rng.choice(("EIO", "ENOSPC", "ENOSPC", "EDQUOT", "EMFILE") if call in _SPACE else ("EIO", "EMFILE"))
    # Staged segments are left out: their header is written over in place, which no device does in part, as it is in one
    # sector. A write of which the device takes 40 bytes ends within the first frame. One of more may leave whole ones,
    # which are refused, and cannot be gone if they cannot be truncated.
    shorts = (None, 0, 1, 40) if "truncate" in calls else (None, 0, 1, 40, 150, 300)
    short = rng.choice(shorts) if call == "write" else None
    match = rng.choice(_APPENDED) if short else ""
    pages: Pages = rng.choice(("kept", "dropped", "evicted")) if call == "sync" else "dropped"
    return Fault(call, rng.choice((1, 1, 2, 3, 5, 10)), error, rng.random() < _LASTING, short, pages, match)
