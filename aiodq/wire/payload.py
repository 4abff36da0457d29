"""Decoding and encoding of payloads: what several packets have in common."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from aiodq.errors import ProtocolError
from aiodq.wire.layout import ACK, ITEM, JSON, RANGE, SIZE, TEXT

if TYPE_CHECKING:
    import struct
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

__all__ = [
    "END", "Held", "Item", "Payload", "Range", "add_range", "item_rows", "json_bytes", "range_rows", "sized",
    "text_bytes",
]  # fmt: skip

END: Final = 1 << 64
"""Every offset and every delivery number is below this."""


class Range(NamedTuple):
    """Consecutive messages, by the first one's offset and delivery number."""

    first: int
    delivery: int
    messages: int


def add_range(ranges: list[Range], offset: int, delivery: int, count: int) -> None:
    """Append a range, or make the last one longer."""
    if ranges:
        first, number, before = ranges[-1]
        if offset == first + before and delivery == number + before:
            ranges[-1] = Range(first, number, before + count)
            return
    ranges.append(Range(offset, delivery, count))


class Held(NamedTuple):
    """A range that a client holds, and how often each of its messages was delivered."""

    first: int
    delivery: int
    messages: int
    attempts: int


class Item(NamedTuple):
    """A message to be requeued or touched; `span` in nanoseconds, or `UNSET`."""

    offset: int
    delivery: int
    span: int
    attempts: int


class Payload:
    """A packet's payload, read from its beginning: no number in it is trusted before a check against what is left.

    Attributes:
        flags: the packet's.
    """

    def __init__(self, name: str, flags: int, view: memoryview) -> None:
        """Read from the beginning of `view`; `name` is the packet's name in errors."""
        self._name = name
        self._view = view
        self._size = len(view)
        self._at = 0
        self.flags: int = flags

    @property
    def left(self) -> int:
        """The number of bytes left."""
        return self._size - self._at

    def refuse(self, reason: str) -> NoReturn:
        """Raise a `ProtocolError` for the packet."""
        raise ProtocolError(f"{self._name}: {reason}")

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the next numbers."""
        at, size = self._at, layout.size
        if self._size - at < size:
            self.refuse(f"{self.left} bytes are left where {size} are needed")
        self._at = at + size
        return layout.unpack_from(self._view, at)

    def zeros(self, *numbers: int) -> None:
        """Check that reserved fields are 0."""
        if any(numbers):
            self.refuse("reserved bytes are not 0")

    def within(self, first: int, delivery: int, count: int) -> None:
        """Check that a range of that many messages is possible."""
        if not count or first + count > END or delivery + count > END:
            self.refuse(f"no range has {count} messages from offset {first}, delivery {delivery}, on")

    def take(self, size: int) -> memoryview:
        """Read the next bytes."""
        if size > self.left:
            self.refuse(f"{self.left} bytes are left where {size} are needed")
        self._at += size
        return self._view[self._at - size : self._at]

    def rest(self) -> bytes:
        """Read all bytes left."""
        at, self._at = self._at, self._size
        return self._view[at:].tobytes()

    def text(self, size: int, most: int, *, least: int = 0) -> str:
        """Read the next bytes as text."""
        if not least <= size <= most:
            self.refuse(f"a text of {size} bytes, not {least} to {most}")
        try:
            return self.take(size).tobytes().decode()
        except UnicodeDecodeError:
            self.refuse("a text that is not UTF-8")

    def sized_text(self) -> str:
        """Read a text that follows its length."""
        (size,) = self.fixed(SIZE)
        return self.text(size, TEXT)

    def facts(self) -> dict[str, Any]:
        """Read the bytes left as a JSON object; an empty one if there are none."""
        if self.left > JSON:
            self.refuse(f"{self.left} bytes of JSON, not up to {JSON}")
        data = self.rest()
        if not data:
            return {}
        try:
            facts = json.loads(data.decode(), parse_constant=_no_number)
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict) or not facts:
            self.refuse("what should be a JSON object is none, or an empty one")
        return facts

    def rows(self, layout: struct.Struct, count: int, *, least: int = 1) -> Iterable[tuple[Any, ...]]:
        """Read `count` rows of one layout, which must be all that is left."""
        if count < least or count * layout.size != self.left:
            self.refuse(f"{count} rows of {layout.size} bytes in {self.left} bytes")
        return layout.iter_unpack(self.take(self.left))

    def ranges(self, count: int) -> tuple[Range, ...]:
        """Read `count` ranges."""
        ranges = tuple(map(Range._make, self.rows(RANGE, count)))
        for each in ranges:
            self.within(*each)
        return ranges

    def items(self, count: int) -> tuple[Item, ...]:
        """Read `count` items."""
        items: list[Item] = []
        for offset, delivery, span, attempts, zero in self.rows(ITEM, count):
            self.zeros(zero)
            if span < -1:
                self.refuse(f"a span of {span} ns")
            items.append(Item(offset, delivery, span, attempts))
        return tuple(items)

    def part(self, read: Callable[[Payload], T]) -> T:
        """Decode a payload inside this one, which follows its length."""
        (size,) = self.fixed(SIZE)
        inner = Payload(self._name, 0, self.take(size))
        found = read(inner)
        if inner.left:
            self.refuse(f"{inner.left} bytes too many in a part")
        return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def text_bytes(text: str, most: int, *, least: int = 0) -> bytes:
    """Encode a text.

    Raises:
        ProtocolError: it is too short or too long.
    """
    data = text.encode()
    if not least <= len(data) <= most:
        raise ProtocolError(f"a text of {len(data)} bytes, not {least} to {most}: {text!r:.80}")
    return data


def json_bytes(facts: Mapping[str, Any]) -> bytes:
    """Encode facts as JSON; nothing if there are none.

    Raises:
        ProtocolError: the JSON is too long.
    """
    data = json.dumps(facts, separators=(",", ":"), allow_nan=False).encode() if facts else b""
    if len(data) > JSON:
        raise ProtocolError(f"{len(data)} bytes of JSON, not up to {JSON}")
    return data


def sized(data: bytes) -> bytes:
    """Return bytes after their length."""
    return SIZE.pack(len(data)) + data


def range_rows(handle: int, epoch: int, ranges: tuple[Range, ...]) -> bytes:
    """Encode a payload of ranges."""
    return ACK.pack(handle, len(ranges), epoch) + b"".join(RANGE.pack(*each) for each in ranges)


def item_rows(handle: int, epoch: int, items: tuple[Item, ...]) -> bytes:
    """Encode a payload of items."""
    return ACK.pack(handle, len(items), epoch) + b"".join(ITEM.pack(*each, 0) for each in items)
