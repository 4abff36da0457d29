"""What a channel knows of single messages, by offset, in blocks that copies share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar, overload

from aiodq.delivery.range_set import among

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OffsetMap"]

V = TypeVar("V")

_NONE: Final = frozenset[int]()

_BITS: Final = 10
"""The offsets of a block are equal but for so many bits: a block of neighbours is copied in some microseconds."""


class OffsetMap(Generic[V]):
    """A dict by offset that can be copied at almost no cost, whatever its size.

    A copy shares all blocks with the original. The first of the two to change a block copies that block.
    """

    __slots__ = ("_blocks", "_shared", "size")

    def __init__(self, items: Iterable[tuple[int, V]] = ()) -> None:
        """Make a map with these offsets and values."""
        # The number of offsets, as an attribute: cheaper than a call of `len`.
        self.size: int = 0
        # INVARIANT: no block is empty.
        self._blocks: dict[int, dict[int, V]] = {}
        # The numbers of the blocks that may be shared with a copy.
        self._shared: frozenset[int] | set[int] = _NONE
        for offset, value in items:
            self[offset] = value

    def __len__(self) -> int:
        """Return the number of offsets."""
        return self.size

    def __iter__(self) -> Iterator[int]:
        """Yield the offsets."""
        for block in self._blocks.values():
            yield from block

    def __contains__(self, offset: int) -> bool:
        """Return whether an offset has a value."""
        block = self._blocks.get(offset >> _BITS)
        return block is not None and offset in block

    def items(self) -> Iterator[tuple[int, V]]:
        """Yield each offset and its value."""
        for block in self._blocks.values():
            yield from block.items()

    def copy(self) -> OffsetMap[V]:
        """Return a copy, which shares all blocks until one of the two is changed."""
        made = OffsetMap[V]()
        made._blocks, made.size = self._blocks.copy(), self.size
        self._shared, made._shared = set(self._blocks), set(self._blocks)
        return made

    @overload
    def get(self, offset: int) -> V | None: ...

    @overload
    def get(self, offset: int, default: V) -> V: ...

    def get(self, offset: int, default: V | None = None) -> V | None:
        """Return the value of an offset."""
        block = self._blocks.get(offset >> _BITS)
        return default if block is None else block.get(offset, default)

    def __getitem__(self, offset: int) -> V:
        """Return the value of an offset that has one."""
        return self._blocks[offset >> _BITS][offset]

    def among(self, offsets: Iterable[int]) -> dict[int, V]:
        """Return those of some offsets that have a value, with their values."""
        blocks, none = self._blocks, dict[int, V]()
        if not blocks:
            return none
        return {
            offset: value for offset in offsets if (value := blocks.get(offset >> _BITS, none).get(offset)) is not None
        }

    def within(self, start: int, stop: int) -> Iterator[int]:
        """Yield the offsets from `start` to `stop`, in order."""
        while start < stop:
            number = start >> _BITS
            end = min(stop, number + 1 << _BITS)
            if number in self._blocks:
                yield from filter(self._blocks[number].__contains__, range(start, end))
            start = end

    def __setitem__(self, offset: int, value: V) -> None:
        """Set the value of an offset."""
        number = offset >> _BITS
        block = self._blocks.get(number)
        if block is None or number in self._shared:
            block = self._own(number)
        before = len(block)
        block[offset] = value
        self.size += len(block) - before

    def update(self, offsets: range, values: Iterable[V]) -> None:
        """Set the values of consecutive offsets; there are at least as many values as offsets."""
        start, left = offsets.start, iter(values)
        while start < offsets.stop:
            number = start >> _BITS
            stop = min(offsets.stop, number + 1 << _BITS)
            block = self._own(number)
            self.size -= len(block)
            block.update(zip(range(start, stop), left, strict=False))
            self.size += len(block)
            start = stop

    def pop(self, offset: int) -> V | None:
        """Remove an offset; return its value, or None."""
        number = offset >> _BITS
        block = self._blocks.get(number)
        if block is None or offset not in block:
            return None
        if number in self._shared:
            block = self._own(number)
        value = block.pop(offset)
        self.size -= 1
        if not block:
            del self._blocks[number]
        return value

    def discard_range(self, start: int, stop: int) -> None:
        """Remove everything from `start` to `stop`."""
        if stop - start == 1:
            self.pop(start)
            return
        blocks = self._blocks
        for number in among(blocks, start >> _BITS, (stop - 1 >> _BITS) + 1):
            there = blocks[number]
            gone = among(there, start, stop)
            self.size -= len(gone)
            if len(gone) == len(there):
                del blocks[number]
            elif gone:
                block = self._own(number)
                for offset in gone:
                    del block[offset]

    def parts(self) -> tuple[dict[int, dict[int, V]]]:
        """Return the large objects that a map consists of, so that the caller can free them gradually."""
        return (self._blocks,)

    def _own(self, number: int) -> dict[int, V]:
        """Return a block that may be changed: not shared with a copy, and created if missing."""
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = {}
        elif number in self._shared:
            block = self._blocks[number] = block.copy()
        else:
            return block
        if isinstance(self._shared, set):
            self._shared.discard(number)
        return block
