"""Fault plans: which calls of a file system fail, and how. Plans print, parse, and repeat from a seed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, Self, cast, get_args

__all__ = ["CALLS", "Call", "Fault", "FaultPlan", "Pages"]

Call = Literal[
    "open", "create", "read", "write", "size", "truncate", "sync", "close", "listdir", "is_directory", "exists",
    "make_directory", "rename", "remove", "remove_directory", "sync_directory", "lock",
]  # fmt: skip

CALLS: Final[tuple[Call, ...]] = get_args(Call)
"""The calls of a file system that can fail. `create` is an `open` that makes the file."""

_ERRORS: Final = ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "EINTR")
_SPACE_FREE: Final = ("EIO", "EMFILE", "EINTR")
_SPACE: Final = frozenset({"create", "write", "sync", "make_directory", "rename", "sync_directory", "truncate"})

Pages = Literal["kept", "dropped", "evicted"]

_DROPPED: Final = "dropped"


@dataclass(frozen=True, slots=True)
class Fault:
    """One call that fails.

    Attributes:
        call: the kind of call.
        at: its number among the calls of that kind whose path contains `match`, from 1.
        error: the errno's name, such as `"EIO"`; "" with `short` for a write that is only short.
        lasting: whether every later call fails, too.
        short: a write writes this many bytes, and then fails unless `error` is "".
        pages: what a failed sync leaves: `"kept"` to be written by the next, `"dropped"` so that the next succeeds
            without them while reads still show them, `"evicted"` so that reads no longer do.
        match: part of the path.
    """

    call: Call
    at: int
    error: str = "EIO"
    lasting: bool = False
    short: int | None = None
    pages: Pages = "dropped"
    match: str = ""

    def __post_init__(self) -> None:
        """Refuse an impossible fault."""
        if self.call not in CALLS:
            raise ValueError(f"no call is named {self.call!r}; there are {', '.join(CALLS)}")
        if self.at < 1:
            raise ValueError("calls are counted from 1")
        if self.error and self.error not in errno.errorcode.values():
            raise ValueError(f"no errno is named {self.error!r}")
        if not self.error and self.short is None:
            raise ValueError("a fault needs an error, or a write's size")
        if self.short is not None and (self.call != "write" or self.short < 0):
            raise ValueError("only a write can be short, and has at least 0 bytes")
        if self.pages not in get_args(Pages) or (self.pages != _DROPPED and self.call != "sync"):
            raise ValueError(f"pages are {', '.join(get_args(Pages))}, and after a sync only")
        if set(self.match) & {":", ","} or self.match != self.match.strip():
            raise ValueError(f"{self.match!r} could not be read again")

    def __str__(self) -> str:
        """Return the form that `FaultPlan.parse` reads, such as `write@5:ENOSPC:short=100:lasting`."""
        parts = [f"{self.call}@{self.at}"]
        if self.error:
            parts.append(self.error)
        if self.short is not None:
            parts.append(f"short={self.short}")
        if self.lasting:
            parts.append("lasting")
        if self.pages != _DROPPED:
            parts.append(self.pages)
        if self.match:
            parts.append(f"match={self.match}")
        return ":".join(parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `str` gave.

        Raises:
            ValueError: it is no fault.
        """
        head, *rest = text.split(":")
        call, _, at = head.partition("@")
        fields: dict[str, Any] = {"error": ""}
        for part in rest:
            name, equals, value = part.partition("=")
            if equals and name in {"short", "match"}:
                fields[name] = int(value) if name == "short" else value
            elif part == "lasting":
                fields["lasting"] = True
            elif part in get_args(Pages):
                fields["pages"] = part
            else:
                fields["error"] = part
        return cls(cast("Call", call), int(at), **fields)

    def raise_error(self, path: str) -> None:
        """Raise the fault's `OSError`, if it has one."""
        if self.error:
            number: int = getattr(errno, self.error)
            raise OSError(number, os.strerror(number), path)


@dataclass(slots=True)
class _Counted:
    """A fault, and how many calls it could have hit."""

    fault: Fault
    seen: int = 0


class FaultPlan:
    """Faults, and how far each has been counted down. A plan belongs to one file system.

    >>> plan = FaultPlan.parse("sync@2:EIO, write@5:ENOSPC:lasting")
    >>> str(plan)
    'sync@2:EIO, write@5:ENOSPC:lasting'
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        """Begin to count."""
        self._faults: list[_Counted] = []
        self.add(*faults)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the plan for which `str` returned `text`.

        Raises:
            ValueError: it is not a plan.
        """
        return cls(Fault.parse(part.strip()) for part in text.split(",") if part.strip())

    @classmethod
    def random(cls, seed: int, *, calls: Sequence[Call] = CALLS, among: int = 50, faults: int = 1) -> Self:
        """Return a plan that is always the same for the same arguments.

        Args:
            seed: decides everything.
            calls: the kinds to choose from.
            among: each fault hits one of the first so many calls of its kind.
            faults: how many there are.
        """
        source = Random(seed)
        return cls(_random_fault(source, calls, among) for _ in range(faults))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return ", ".join(str(counted.fault) for counted in self._faults)

    def add(self, *faults: Fault) -> None:
        """Add faults; their calls are counted from now on."""
        self._faults = [*self._faults, *map(_Counted, faults)]

    def clear(self) -> None:
        """Let all calls succeed from now on."""
        self._faults = []

    def enter(self, call: Call, path: str) -> Fault | None:
        """Count a call; return the fault that hits it, or None."""
        hit = None
        # Another thread may replace the list meanwhile.
        for counted in self._faults:
            fault = counted.fault
            if fault.call != call or fault.match not in path:
                continue
            counted.seen += 1
            if hit is None and (counted.seen == fault.at or (fault.lasting and counted.seen > fault.at)):
                hit = fault
        return hit


def _random_fault(source: Random, calls: Sequence[Call], among: int) -> Fault:
    call = source.choice(calls)
    error = source.choice(_ERRORS if call in _SPACE else _SPACE_FREE)
    short = source.choice((None, 0, 1, 100)) if call == "write" else None
    pages: Pages = source.choice(("kept", "dropped", "evicted")) if call == "sync" else "dropped"
    if short and source.random() < 0.5:  # every other short write is only short
        error = ""
    return Fault(call, source.randint(1, among), error, source.random() < 0.25, short, pages)  # one of four lasts
