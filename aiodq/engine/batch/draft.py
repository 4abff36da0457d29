"""The draft: a message as a caller describes it, before anything is checked."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - as timedelta: who reads the types of `Draft` evaluates them
from dataclasses import dataclass
from datetime import timedelta  # noqa: TC003

__all__ = ["Draft"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be put.

    Attributes:
        body: the message.
        tag: a short text that channels may filter by, or None.
        key: bytes, or None.
        headers: text by text, or None.
        delay: seconds, or a `timedelta`, before which it is not delivered; None for none.
        ttl: seconds, or a `timedelta`, after the put, after which it is no longer delivered; None for no limit.
    """

    body: bytes | bytearray | memoryview
    tag: str | None = None
    key: bytes | bytearray | memoryview | None = None
    headers: Mapping[str, str] | None = None
    delay: float | timedelta | None = None
    ttl: float | timedelta | None = None
