"""A base class of objects that can be neither copied nor pickled."""

from __future__ import annotations

from typing import Any, SupportsIndex

__all__ = ["Uncopied"]


class Uncopied:
    """A base class of objects that can be neither copied nor pickled: their lock, files, loop and threads exist once.

    Without it, `copy.deepcopy` would make incomplete objects before it fails at one that cannot be copied. When those
    are collected, they would close what belongs to the original, such as the store's lock, by its descriptor.
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
