"""What a `with` or a `for` is told where `async with` or `async for` is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.errors import NotAwaitedError

if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["AsyncBlock", "AsyncIteration"]


class AsyncBlock:
    """Something for `async with` alone."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a checker shall go on finding it

        def __enter__(self) -> NoReturn:
            """Say what to write.

            Raises:
                NotAwaitedError: always.
            """
            name = type(self).__name__
            raise NotAwaitedError(f'a {name} is for "async with", not for "with": write "async with", in an async def')

        def __exit__(self, *_: object) -> None:
            """Never be called: without it, Python would say that `with` knows nothing of this."""


class AsyncIteration:
    """Something for `async for` alone."""

    __slots__ = ()

    if not TYPE_CHECKING:  # as above

        def __iter__(self) -> NoReturn:
            """Say what to write.

            Raises:
                NotAwaitedError: always.
            """
            name = type(self).__name__
            raise NotAwaitedError(f'a {name} is for "async for", not for "for": write "async for message in ..."')
