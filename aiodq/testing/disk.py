"""What a disk may hold after a power cut: everything durable, and any legal part of what was not durable yet.

There are two orderings. `"posix"` assumes only what the standard promises: between two syncs of a file any subset of
its writes may have arrived, torn at sectors, in any order, and a larger size without the bytes, with zeros or anything
else (`STALE`) in their place; a name is durable once its directory was synced. `"ext4"` is the journal of ext4 with
`data=ordered`: names and truncations arrive in the order of the calls, a sync of anything includes everything before
it, and a file never shows bytes after its old end that were not written.

The method is that of "All File Systems Are Not Created Equal" (OSDI 2014) and CrashMonkey (OSDI 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, TypeAlias

__all__ = [
    "STALE",
    "Disk",
    "Dropped",
    "Image",
    "Made",
    "Marked",
    "Operation",
    "Ordering",
    "Removed",
    "Renamed",
    "Synced",
    "Truncated",
    "Wrote",
    "apply_change",
]

Ordering = Literal["posix", "ext4"]

Image: TypeAlias = dict[str, bytes | None]
"""A tree of files: absolute paths, each with the file's bytes, or None for a directory."""

ROOT: Final = 0

STALE: Final = b"[a file that is long gone was here]"
"""What stands, over and over, where a size arrived without the bytes, and the disk held something else before."""

_SECTORS: Final = (512, 4096)


@dataclass(frozen=True, slots=True)
class Made:
    """A file or directory was made: its number, its directory's number, its name."""

    node: int
    parent: int
    name: str
    directory: bool


@dataclass(frozen=True, slots=True)
class Renamed:
    """Something got another name, replacing what had it."""

    node: int
    parent: int
    name: str
    new_parent: int
    new_name: str


@dataclass(frozen=True, slots=True)
class Removed:
    """A name was removed."""

    parent: int
    name: str


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes were written to a file; `stored`: through a mapping, of which a kill in the middle may leave any bytes."""

    node: int
    position: int
    data: bytes
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Truncated:
    """A file was cut or extended to this size."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync succeeded. It covers what came before the operation with the number `began`."""

    node: int
    began: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A sync failed, and the system forgot what it was to write: later syncs succeed without it, as on Linux.

    Reads still show the bytes, unless they were `evicted` from memory.
    """

    node: int
    began: int
    evicted: bool = False


@dataclass(frozen=True, slots=True)
class Marked:
    """A note of the recording test: what had been promised by then."""

    label: object


Operation: TypeAlias = "Made | Renamed | Removed | Wrote | Truncated | Synced | Dropped | Marked"

_Edit: TypeAlias = "tuple[int, str, int | None]"


@dataclass(slots=True)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Wrote | Truncated]] = field(default_factory=list)


class Disk:
    """The durable side of a file system: fed with operations, asked what a power cut now might leave.

    Attributes:
        number: operations so far.
    """

    def __init__(self, ordering: Ordering = "posix") -> None:
        """Begin with an empty root directory."""
        self.number: int = 0
        self._ordering = ordering
        self._files: dict[int, _File] = {}
        self._directories: dict[int, dict[str, int]] = {ROOT: {}}
        self._changes: list[tuple[int, tuple[_Edit, ...]]] = []
        self._journaled = 0

    # --- what happens

    def apply(self, operation: Operation) -> None:
        """Take the next operation into account."""
        match operation:
            case Made(node, parent, name, directory):
                if directory:
                    self._directories[node] = {}
                else:
                    self._files[node] = _File()
                self._changes.append((self.number, ((parent, name, node),)))
            case Renamed(node, parent, name, new_parent, new_name):
                self._changes.append((self.number, ((parent, name, None), (new_parent, new_name, node))))
            case Removed(parent, name):
                self._changes.append((self.number, ((parent, name, None),)))
            case Wrote(node) | Truncated(node):
                if node in self._files:
                    self._files[node].pending.append((self.number, operation))
            case Synced(node, began):
                self._sync(node, began)
            case Dropped(node, began):
                self._drop(node, began)
            case Marked():
                pass
        self.number += 1

    def _sync(self, node: int, began: int) -> None:
        file = self._files.get(node)
        if file is not None:
            for number, change in file.pending:
                if number < began:
                    apply_change(file.durable, change)
            file.pending = [item for item in file.pending if item[0] >= began]
        if self._ordering == "ext4":
            self._journaled = max(self._journaled, began)
            covered = [item for item in self._changes if item[0] < began]
        else:
            wanted = {item[0] for item in self._changes if item[0] < began and any(e[0] == node for e in item[1])}
            covered = self._kept(wanted.__contains__)
        for item in covered:
            self._changes.remove(item)
        for _, edits in covered:
            self._commit(edits)

    def _drop(self, node: int, began: int) -> None:
        file = self._files.get(node)
        if file is not None:
            file.pending = [item for item in file.pending if item[0] >= began]
        self._changes = [item for item in self._changes if item[0] >= began or all(edit[0] != node for edit in item[1])]

    def _commit(self, edits: tuple[_Edit, ...]) -> None:
        gone = [_edit(self._directories, edit) for edit in edits]
        named = {node for _, changes in self._changes for _, _, node in changes} | {node for _, _, node in edits}
        for node in gone:
            if node is not None and node not in named:
                self._files.pop(node, None)

    # --- what a power cut leaves

    def content(self, node: int) -> bytes:
        """Return a file's bytes, durable or not."""
        file = self._files.get(node)
        return b"" if file is None else _everything(file)

    @property
    def settled(self) -> bool:
        """Whether everything is durable, so that a power cut can leave only one state."""
        return not self._changes and not any(file.pending for file in self._files.values())

    def cuts(self, random: Random, limit: int) -> Iterator[Image]:
        """Yield up to `limit` states that a power cut now might leave: the least, the most, then random ones."""
        if limit > 0:
            yield self._image(lambda _: False, self._least)
        if self.settled:
            return
        if limit > 1:
            yield self._image(lambda _: True, _everything)
        for _ in range(limit - 2):
            yield self._ext4(random) if self._ordering == "ext4" else self._posix(random)

    def _least(self, file: _File) -> bytes:
        data = bytearray(file.durable)
        for number, change in file.pending:
            if number < self._journaled and isinstance(change, Truncated):
                apply_change(data, change)
        return bytes(data)

    def _posix(self, random: Random) -> Image:
        keep = self._choice(random)
        return self._image(keep, lambda file: _torn(file, keep, random))

    def _choice(self, random: Random) -> Callable[[int], bool]:
        """Return which of the pending operations arrived, in one of several ways to lose some."""
        numbers = [number for number, _ in self._changes]
        numbers += [number for file in self._files.values() for number, _ in file.pending]
        chosen = random.choice(numbers)
        way = random.randrange(4)
        if way == 0:
            return lambda number: number < chosen
        if way == 1:
            return lambda number: number != chosen
        if way == 2:  # the third of the four ways
            return lambda number: number == chosen
        share = random.choice((0.1, 0.5, 0.9))
        kept = {number for number in numbers if random.random() < share}
        return kept.__contains__

    def _ext4(self, random: Random) -> Image:
        numbers = [number for number, _ in self._changes]
        numbers += [n for file in self._files.values() for n, change in file.pending if isinstance(change, Truncated)]
        commit = random.choice([*(number for number in numbers if number >= self._journaled), self.number])
        return self._image(lambda number: number < commit, lambda file: _ordered(file, commit, random))

    def _kept(self, keep: Callable[[int], bool]) -> list[tuple[int, tuple[_Edit, ...]]]:
        """Return the changes of names that arrive with these: also every earlier one of a name that they change."""
        kept: list[tuple[int, tuple[_Edit, ...]]] = []
        touched: set[tuple[int, str]] = set()
        for number, edits in reversed(self._changes):
            places = {(directory, name) for directory, name, _ in edits}
            if keep(number) or places & touched:
                kept.append((number, edits))
                touched |= places
        kept.reverse()
        return kept

    def _image(self, keep: Callable[[int], bool], content: Callable[[_File], bytes]) -> Image:
        names = {node: dict(entries) for node, entries in self._directories.items()}
        for _, edits in self._kept(keep):
            for edit in edits:
                _edit(names, edit)
        image: Image = {}
        places = [("", ROOT)]
        for path, directory in places:
            for name, node in sorted(names[directory].items()):
                at = f"{path}/{name}"
                if node in names:
                    image[at] = None
                    places.append((at, node))
                else:
                    image[at] = content(self._files[node])
        return image


def _edit(names: dict[int, dict[str, int]], edit: _Edit) -> int | None:
    """Change one name; return what had it before."""
    directory, name, node = edit
    before = names[directory].pop(name, None)
    if node is not None:
        names[directory][name] = node
    return before


def apply_change(data: bytearray, change: Wrote | Truncated) -> None:
    """Apply an operation to a file's bytes."""
    if isinstance(change, Truncated):
        _resize(data, change.size)
        return
    if len(data) < change.position:
        _resize(data, change.position)
    data[change.position : change.position + len(change.data)] = change.data


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def _everything(file: _File) -> bytes:
    data = bytearray(file.durable)
    for _, change in file.pending:
        apply_change(data, change)
    return bytes(data)


def _torn(file: _File, keep: Callable[[int], bool], random: Random) -> bytes:
    """Return a file of which some writes arrived, some in part, and some only as a larger size."""
    data = bytearray(file.durable)
    for number, change in file.pending:
        if isinstance(change, Truncated):
            if keep(number):
                apply_change(data, change)
        elif keep(number):
            _write_torn(data, change, random)
        elif random.random() < 0.2:  # seldom enough to leave room for the other ways
            end = change.position + len(change.data)
            if end > len(data):
                missing = end - len(data)
                data.extend(random.choice((bytes(missing), (STALE * (missing // len(STALE) + 1))[:missing])))
    return bytes(data)


def _write_torn(data: bytearray, change: Wrote, random: Random) -> None:
    if random.random() < 0.5:  # every other write arrives whole
        apply_change(data, change)
        return
    sector, share = random.choice(_SECTORS), random.choice((0.3, 0.7))
    for piece in _pieces(change, sector):
        if random.random() < share:
            apply_change(data, piece)


def _pieces(change: Wrote, sector: int) -> Iterator[Wrote]:
    """Yield a write's parts as the device's sectors cut it."""
    at, end = change.position, change.position + len(change.data)
    while at < end:
        stop = min(end, at - at % sector + sector)
        yield Wrote(change.node, at, change.data[at - change.position : stop - change.position])
        at = stop


def _ordered(file: _File, commit: int, random: Random) -> bytes:
    """Return a file whose new bytes arrived as a prefix, and whose old ones may have been overwritten in any order."""
    data = bytearray(file.durable)
    old, last = len(data), random.randint(0, len(file.pending))
    for index, (number, change) in enumerate(file.pending):
        if isinstance(change, Truncated):
            if number < commit:
                apply_change(data, change)
                old = min(old, len(data))
            continue
        for piece in _pieces(change, _SECTORS[0]):
            if piece.position < old:
                if random.random() < 0.5:  # any subset
                    apply_change(data, piece)
            elif index < last and piece.position <= len(data):
                apply_change(data, piece)
        if index + 1 == last and random.random() < 0.5 and len(data) > max(old, change.position):  # a coin
            # A page that was written back while it was being filled.
            _resize(data, random.randint(max(old, change.position), len(data)))
    return bytes(data)
