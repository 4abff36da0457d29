"""Deciding a future that may be decided already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

__all__ = ["settle"]


def settle(done: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Give the future its result, or its error where there is one; who was cancelled hears nothing."""
    if done.done():
        return
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
