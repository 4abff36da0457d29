"""Checks the functions given to `consume` and `requeue_dead` before the first message is delivered."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiodq.errors import InvalidOptionError, InvalidOptionTypeError
from aiodq.values import check_whole, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.message import Message

__all__ = [
    "Handler",
    "checked_choice",
    "checked_concurrency",
    "checked_handler",
    "checked_hook",
    "chooses",
    "is_asynchronous",
]

_MOST_AT_ONCE: Final = 100_000
"""A worker is a task of some 2 KiB: many more would hold up the loop, and fill memory, before the first message."""


class Handler(NamedTuple):
    """A function that processes a message.

    Attributes:
        call: the function; it is called with the message.
        threaded: whether it is a plain function, which runs in a thread so that it does not hold up the event loop.
    """

    call: Callable[[Message], object]
    threaded: bool


def checked_handler(
    handler: Callable[[Any], object], form: str = "async def handler(message: aiodq.Message) -> None"
) -> Handler:
    """Return a handler that can be called with a message; `form` is how one is written.

    Raises:
        InvalidOptionError: it cannot be; usually also a `TypeError`.
    """
    if inspect.iscoroutine(handler):
        handler.close()  # it is never awaited: no second warning about that
        raise InvalidOptionTypeError(
            "the handler is a coroutine: give the function, consume(handler), not what it returned, consume(handler(…))"
        )
    _check_call(handler, 1, "handler", form)
    function = _function(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOptionError(
            f"the handler {shown(handler)} has a `yield`, so calling it does nothing; write it without"
        )
    return Handler(handler, threaded=not is_asynchronous(handler))


def is_asynchronous(function: object) -> bool:
    """Return whether a call of the function returns a coroutine: an `async def`, or what is marked as one.

    An object may be marked itself, by `inspect.markcoroutinefunction`, or as `AsyncMock` does, or be one by its class.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_function(function))


def checked_hook(
    hook: Callable[[Any, BaseException], object] | None,
    form: str = "def on_error(message: aiodq.Message, error: BaseException) -> None",
) -> None:
    """Make sure that `on_error` can be called with a message and an exception; `form` is how one is written.

    Raises:
        InvalidOptionError: it cannot be; usually also a `TypeError`.
    """
    if hook is not None:
        _check_call(hook, 2, "on_error", form)


def checked_concurrency(concurrency: object) -> int:
    """Return how many messages `consume` processes at once.

    Raises:
        InvalidOptionError: it is no whole number from 1 to 100,000; also a `TypeError` if it is not an int.
    """
    return check_whole("concurrency", concurrency, least=1, most=_MOST_AT_ONCE, example=4)


_CHOICE = "write a plain function that returns true or false, such as `lambda letter: letter.tag == 'paid'`"


def checked_choice(where: Callable[[Any], object] | None) -> None:
    """Make sure that `where` can choose letters.

    Raises:
        InvalidOptionTypeError: it is no function, or one whose result is always true, such as a coroutine function.
    """
    if where is None:
        return
    if not callable(where):
        raise InvalidOptionTypeError(f"where is a function of a letter, not {shown(where)}: {_CHOICE}")
    function = _function(where)
    if is_asynchronous(where) or inspect.isasyncgenfunction(function):
        raise InvalidOptionTypeError(f"where {shown(where)} is an `async def`, but it is not awaited: {_CHOICE}")
    if inspect.isgeneratorfunction(function):
        raise InvalidOptionTypeError(f"where {shown(where)} has a `yield`, so calling it tells nothing: {_CHOICE}")


def chooses(where: Callable[[Message], object], letter: Message) -> bool:
    """Return whether `where` chooses this letter.

    Raises:
        InvalidOptionTypeError: it returned something to be awaited, which is always true.
    """
    said = where(letter)
    if inspect.isawaitable(said):
        if inspect.iscoroutine(said):
            said.close()  # it is never awaited: no second warning about that
        raise InvalidOptionTypeError(f"where {shown(where)} returned {shown(said)}, which is not awaited: {_CHOICE}")
    return bool(said)


def _check_call(given: object, number: int, name: str, form: str) -> None:
    if inspect.isclass(given):
        raise InvalidOptionError(
            f"{name} is the class {given.__name__}, and calling it only makes one: give an instance"
        )
    if not callable(given):
        raise InvalidOptionTypeError(f"{name} must be a function, not {shown(given)}: {form}")
    try:
        # What counts is what is called: a decorator may give the function that it wraps more than it is given itself.
        signature = inspect.signature(given, follow_wrapped=False)
    except ValueError:
        return  # a function in C without a known signature
    try:
        signature.bind(*[None] * number)
    except TypeError as error:
        takes = "the message" if number == 1 else "the message and the exception"
        raise InvalidOptionTypeError(
            f"{name} {shown(given)} is called with {takes}, and takes {signature}: {form}"
        ) from error


def _function(handler: object) -> object:
    """Return the function that a call of the handler runs: for an object, its `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler if inspect.isroutine(handler) else type(handler).__call__
