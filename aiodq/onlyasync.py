"""Errors for `with` and `for` where `async with` and `async for` are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiodq.errors import NotAwaitedError
from aiodq.uncopied import Uncopied

__all__ = ["AsyncBlock", "AsyncIteration"]


class AsyncBlock(Uncopied):
    """A base class for objects used with `async with`, not with `with`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers must go on reporting it

        def __enter__(self) -> NoReturn:
            """Raise an error that says what to write.

            Raises:
                NotAwaitedError: always.
            """
            name = type(self).__name__
            raise NotAwaitedError(f'a {name} is for "async with", not for "with": write "async with", in an async def')

        def __exit__(self, *_: object) -> None:
            """Never called: without it, Python would raise an error of its own that does not say what to write."""


class AsyncIteration(Uncopied):
    """A base class for objects used with `async for`, not with `for`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # as above

        def __iter__(self) -> NoReturn:
            """Raise an error that says what to write.

            Raises:
                NotAwaitedError: always.
            """
            name = type(self).__name__
            raise NotAwaitedError(f'a {name} is for "async for", not for "for": write "async for message in ..."')
