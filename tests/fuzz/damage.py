"""What disks, restores and hasty hands do to the files of a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tests.fuzz.world import Files


def flip(rng: Random, data: bytes) -> bytes:
    """One bit is another."""
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: Random, data: bytes) -> bytes:
    """The end is gone."""
    return data[: rng.randrange(len(data))]


def zero(rng: Random, data: bytes) -> bytes:
    """A stretch is zeros, a sector perhaps."""
    start = rng.randrange(len(data))
    size = rng.choice((1, 8, 64, 512, len(data)))
    return data[:start] + bytes(min(size, len(data) - start)) + data[start + size :]


def scramble(rng: Random, data: bytes) -> bytes:
    """A stretch is anything."""
    start = rng.randrange(len(data))
    size = min(rng.choice((8, 64, 512, len(data))), len(data) - start)
    return data[:start] + rng.randbytes(size) + data[start + size :]


def grow(rng: Random, data: bytes) -> bytes:
    """Something is behind the end."""
    return data + rng.choice((bytes(100), rng.randbytes(50), data[-60:], data))


IN_PLACE: Final[tuple[Callable[[Random, bytes], bytes], ...]] = (flip, cut, zero, scramble, grow)


def _pick(rng: Random, files: Mapping[str, bytes]) -> str:
    """Return a file, small ones as often as large ones."""
    return rng.choice(sorted(path for path, data in files.items() if data and os.path.basename(path) != "LOCK"))


def swap(rng: Random, files: Files, _: Mapping[str, bytes]) -> str:
    """Two files have each other's names."""
    one, two = _pick(rng, files), _pick(rng, files)
    files[one], files[two] = files[two], files[one]
    return f"swap {one} {two}"


def delete(rng: Random, files: Files, _: Mapping[str, bytes]) -> str:
    """A file is gone."""
    path = _pick(rng, files)
    del files[path]
    return f"delete {path}"


def duplicate(rng: Random, files: Files, _: Mapping[str, bytes]) -> str:
    """A file is there a second time, under another name, in its own directory or another's."""
    path = _pick(rng, files)
    directory = os.path.dirname(rng.choice(sorted(files))) if rng.randrange(2) else os.path.dirname(path)
    names = (f"{rng.randrange(10**6):020d}.seg", os.path.basename(path) + ".bak", f"{2**62:020d}.seg")
    target = f"{directory}/{rng.choice(names)}"
    files.setdefault(target, files[path])
    return f"duplicate {path} as {target}"


def foreign(rng: Random, files: Files, other: Mapping[str, bytes]) -> str:
    """A file of another store has the place of one."""
    path = _pick(rng, other)
    files[path] = other[path]
    return f"foreign {path}"


def stray(rng: Random, files: Files, _: Mapping[str, bytes]) -> str:
    """Somebody has put a file of his own there."""
    directory = os.path.dirname(_pick(rng, files))
    target = f"{directory}/{rng.choice(('notes.txt', f'{7:020d}.seg', 'x.aiodq-tmp', 'a.damaged-000000000000'))}"
    files.setdefault(target, rng.randbytes(rng.choice((0, 10, 200))))
    return f"stray {target}"


AMONG: Final[tuple[Callable[[Random, Files, Mapping[str, bytes]], str], ...]] = (
    swap,
    delete,
    duplicate,
    foreign,
    stray,
)


def damage(rng: Random, files: Files, other: Mapping[str, bytes]) -> str:
    """Do one thing to a store; return what."""
    number = rng.randrange(len(IN_PLACE) + len(AMONG))
    if number >= len(IN_PLACE):
        return AMONG[number - len(IN_PLACE)](rng, files, other)
    path, change = _pick(rng, files), IN_PLACE[number]
    files[path] = change(rng, files[path])
    return f"{change.__name__} {path}"
