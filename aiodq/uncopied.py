"""What belongs to one process, and to one place in it."""

from __future__ import annotations

from typing import Any, SupportsIndex

__all__ = ["Uncopied"]


class Uncopied:
    """A base class of what is neither copied nor pickled: its lock, files, loop and threads are there once.

    Without it, `copy.deepcopy` would make halves of objects before it fails at one that cannot be copied; what such
    halves do when they are collected, such as closing the store's lock by its number, would hit the original.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> str | tuple[Any, ...]:
        """Refuse to be copied or pickled.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"a {type(self).__name__} is neither copied nor pickled, as the store behind it is open in this process "
            "alone: give others what they need of it, such as a message's body, or the store's path to open it there"
        )
