"""Errors for keyword arguments that a call does not have, above all options that belong into a class of options."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from aiodq.errors import InvalidOptionTypeError
from aiodq.options import class_of_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "CONFIGURE_CHANNEL",
    "CONFIGURE_QUEUE",
    "CONFIGURE_TOPIC",
    "STORE_QUEUE",
    "STORE_TOPIC",
    "TOPIC_CHANNEL",
    "Explained",
    "known_as",
]

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)

_PLACES: Final = {
    "StoreOptions": "store.topic(name, StoreOptions({}))",
    "ChannelOptions": "topic.channel(name, ChannelOptions({}))",
    "Retention": "StoreOptions(retention=Retention({}))",
    "Backoff": "ChannelOptions(backoff=Backoff({}))",
}


class Explained:
    """A decorator that refuses unknown keyword arguments with an error that says where they belong."""

    def __init__(self, call: str, **places: str) -> None:
        """Describe a call.

        Args:
            call: how users write it, such as `store.queue`.
            places: by the name of a class of options, how one of its options is given, `{}` standing for it; where that
                is not as `_PLACES` says.
        """
        self._call = call
        self._places = _PLACES | places

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, with a check before it."""
        known = tuple(inspect.signature(function).parameters)

        def check(given: Iterable[str]) -> None:
            for name in given:
                if name not in known:
                    raise InvalidOptionTypeError(f"{self._call} has no argument {name!r}: {self._advice(name, known)}")

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            check(kwargs)
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def checked_later(*args: P.args, **kwargs: P.kwargs) -> object:
            check(kwargs)
            return await cast("Any", function(*args, **kwargs))

        return cast("Callable[P, T]", checked_later) if inspect.iscoroutinefunction(function) else checked

    def _advice(self, name: str, known: tuple[str, ...]) -> str:
        owner = class_of_option(name)
        if owner in self._places:
            return f"it is one of {owner}, write {self._places[owner].format(f'{name}=...')}"
        named = [each for each in known if each != "self"]
        close = difflib.get_close_matches(name, named, 1)
        return f"write {close[0]}=..." if close else f"there are {', '.join(named)}"


def known_as(public: str) -> Callable[[C], C]:
    """Return a decorator: Python's own errors about calls of the class's methods name the class that users know."""

    def decorate(cls: C) -> C:
        for name, function in vars(cls).items():
            while inspect.isfunction(function):
                function.__qualname__ = f"{public}.{name}"
                function = getattr(function, "__wrapped__", None)  # noqa: PLW2901 - from the wrapper to what it calls
        return cls

    return decorate


STORE_TOPIC: Final = Explained("store.topic")
STORE_QUEUE: Final = Explained(
    "store.queue",
    StoreOptions="store.queue(name, options=StoreOptions({}))",
    ChannelOptions="store.queue(name, ChannelOptions({}))",
)
TOPIC_CHANNEL: Final = Explained("topic.channel")
CONFIGURE_TOPIC: Final = Explained(
    "topic.configure",
    StoreOptions="topic.configure(StoreOptions({}))",
    ChannelOptions="channel.configure(ChannelOptions({}))",
)
CONFIGURE_CHANNEL: Final = Explained(
    "channel.configure",
    StoreOptions="topic.configure(StoreOptions({}))",
    ChannelOptions="channel.configure(ChannelOptions({}))",
)
CONFIGURE_QUEUE: Final = Explained(
    "queue.configure",
    StoreOptions="queue.configure(StoreOptions({}))",
    ChannelOptions="queue.configure(ChannelOptions({}))",
)
