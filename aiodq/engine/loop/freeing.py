"""Frees large objects gradually, some items in each turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any, Final

__all__ = ["free_gradually"]

_FEW: Final = 32
"""Elements that are freed at once. Each may be a block of a thousand."""


def free_gradually(old: dict[Any, Any] | list[Any]) -> None:
    """Empty unused collections later and gradually: freeing a million messages at once takes 30 ms."""
    if len(old) > _FEW:
        asyncio.get_running_loop().call_soon(_free_some, old, _FEW)


def _free_some(old: dict[Any, Any] | list[Any], number: int) -> None:
    if isinstance(old, list):
        del old[-number:]
    else:
        for _ in range(min(number, len(old))):
            old.popitem()
    free_gradually(old)
