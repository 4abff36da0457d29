"""Reading a payload and writing one: what several packets have in common."""

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

__all__ = ["Held", "Item", "Payload", "Range", "item_rows", "json_bytes", "range_rows", "sized", "text_bytes"]

_END: Final = 1 << 64
"""No offset and no delivery number is as large."""


class Range(NamedTuple):
    """Messages that follow each other, by the first one's offset and delivery number."""

    first: int
    delivery: int
    messages: int


class Held(NamedTuple):
    """A range that a client holds, and how often each of its messages was delivered."""

    first: int
    delivery: int
    messages: int
    attempts: int


class Item(NamedTuple):
    """A message to be requeued or touched; `span` in nanoseconds, or `UNSAID`."""

    offset: int
    delivery: int
    span: int
    attempts: int


class Payload:
    """A packet's payload, read from its beginning: no number in it is believed before it is held against what is left.

    Attributes:
        flags: the packet's.
    """

    def __init__(self, name: str, flags: int, view: memoryview) -> None:
        """Read from the beginning of `view`, of a packet that errors call by this name."""
        self._name = name
        self._view = view
        self._size = len(view)
        self._at = 0
        self.flags: int = flags

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return self._size - self._at

    def refuse(self, reason: str) -> NoReturn:
        """Raise that the packet is not as it should be."""
        raise ProtocolError(f"{self._name}: {reason}")

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next numbers."""
        at, size = self._at, layout.size
        if self._size - at < size:
            self.refuse(f"{self.left} bytes are left where {size} are needed")
        self._at = at + size
        return layout.unpack_from(self._view, at)

    def zeros(self, *numbers: int) -> None:
        """Make sure that what is reserved is not used."""
        if any(numbers):
            self.refuse("reserved bytes are not 0")

    def within(self, first: int, delivery: int, count: int) -> None:
        """Make sure that there is a range of so many messages."""
        if not count or first + count > _END or delivery + count > _END:
            self.refuse(f"no range has {count} messages from offset {first}, delivery {delivery}, on")

    def take(self, size: int) -> memoryview:
        """Return the next bytes."""
        if size > self.left:
            self.refuse(f"{self.left} bytes are left where {size} are needed")
        self._at += size
        return self._view[self._at - size : self._at]

    def rest(self) -> bytes:
        """Return what is left."""
        at, self._at = self._at, self._size
        return self._view[at:].tobytes()

    def text(self, size: int, most: int, *, least: int = 0) -> str:
        """Return the next bytes as text."""
        if not least <= size <= most:
            self.refuse(f"a text of {size} bytes, not {least} to {most}")
        try:
            return self.take(size).tobytes().decode()
        except UnicodeDecodeError:
            self.refuse("a text that is not UTF-8")

    def sized_text(self) -> str:
        """Return the text that stands behind its length."""
        (size,) = self.fixed(SIZE)
        return self.text(size, TEXT)

    def facts(self) -> dict[str, Any]:
        """Return what is left as JSON's object; where nothing is, an empty one."""
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
        """Return so many of the same, which are all that is left."""
        if count < least or count * layout.size != self.left:
            self.refuse(f"{count} rows of {layout.size} bytes in {self.left} bytes")
        return layout.iter_unpack(self.take(self.left))

    def ranges(self, count: int) -> tuple[Range, ...]:
        """Return so many ranges."""
        ranges = tuple(map(Range._make, self.rows(RANGE, count)))
        for each in ranges:
            self.within(*each)
        return ranges

    def items(self, count: int) -> tuple[Item, ...]:
        """Return so many items."""
        items: list[Item] = []
        for offset, delivery, span, attempts, zero in self.rows(ITEM, count):
            self.zeros(zero)
            if span < -1:
                self.refuse(f"a span of {span} ns")
            items.append(Item(offset, delivery, span, attempts))
        return tuple(items)

    def part(self, read: Callable[[Payload], T]) -> T:
        """Return what a payload says that lies in this one, behind its length."""
        (size,) = self.fixed(SIZE)
        inner = Payload(self._name, 0, self.take(size))
        found = read(inner)
        if inner.left:
            self.refuse(f"{inner.left} bytes too many in a part")
        return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def text_bytes(text: str, most: int, *, least: int = 0) -> bytes:
    """Return a text as bytes.

    Raises:
        ProtocolError: it is shorter or longer than it may be.
    """
    data = text.encode()
    if not least <= len(data) <= most:
        raise ProtocolError(f"a text of {len(data)} bytes, not {least} to {most}: {text!r:.80}")
    return data


def json_bytes(facts: Mapping[str, Any]) -> bytes:
    """Return facts as JSON; none at all as nothing.

    Raises:
        ProtocolError: they are too many.
    """
    data = json.dumps(facts, separators=(",", ":"), allow_nan=False).encode() if facts else b""
    if len(data) > JSON:
        raise ProtocolError(f"{len(data)} bytes of JSON, not up to {JSON}")
    return data


def sized(data: bytes) -> bytes:
    """Return bytes behind their number."""
    return SIZE.pack(len(data)) + data


def range_rows(handle: int, epoch: int, ranges: tuple[Range, ...]) -> bytes:
    """Return the payload that consists of ranges."""
    return ACK.pack(handle, len(ranges), epoch) + b"".join(RANGE.pack(*each) for each in ranges)


def item_rows(handle: int, epoch: int, items: tuple[Item, ...]) -> bytes:
    """Return the payload that consists of items."""
    return ACK.pack(handle, len(items), epoch) + b"".join(ITEM.pack(*each, 0) for each in items)
