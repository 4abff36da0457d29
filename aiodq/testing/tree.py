"""Names and bytes as a running system sees them."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from aiodq.storage.io.os_errors import os_error
from aiodq.testing.disk import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Node", "Tree", "parents"]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def parents(path: str) -> list[str]:
    """Return the directories above an absolute path, without the root, from the top."""
    parts = _parts(path)[:-1]
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]


class Node:
    """A file's bytes, or a directory's names; `names` is None for a file."""

    __slots__ = ("data", "names", "number")

    def __init__(self, number: int, *, directory: bool) -> None:
        """Begin empty."""
        self.number: int = number
        self.data: bytearray = bytearray()
        self.names: dict[str, Node] | None = {} if directory else None


class Tree:
    """A root directory and what is below it."""

    def __init__(self, root: Node | None = None, numbers: int = ROOT) -> None:
        """Begin with this root, all numbers up to `numbers` being taken, or with an empty one."""
        self._root = root or Node(ROOT, directory=True)
        self._numbers = numbers

    def find(self, path: str) -> Node | None:
        """Return what has that path."""
        try:
            return self.known(path)
        except OSError:
            return None

    def known(self, path: str) -> Node:
        """Return what has that path.

        Raises:
            FileNotFoundError: nothing has.
            NotADirectoryError: something on the way is a file.
        """
        node = self._root
        for name in _parts(path):
            if node.names is None:
                raise os_error(errno.ENOTDIR, path)
            child = node.names.get(name)
            if child is None:
                raise os_error(errno.ENOENT, path)
            node = child
        return node

    def names(self, path: str) -> dict[str, Node]:
        """Return a directory's names.

        Raises:
            FileNotFoundError: there is nothing.
            NotADirectoryError: it is a file.
        """
        names = self.known(path).names
        if names is None:
            raise os_error(errno.ENOTDIR, path)
        return names

    def make(self, path: str, *, directory: bool) -> Node:
        """Make a file or directory.

        Raises:
            FileExistsError: the name is taken.
            FileNotFoundError: there is no such directory.
        """
        parent, name = os.path.split(path)
        names = self.names(parent)
        if name in names or not name:
            raise os_error(errno.EEXIST, path)
        self._numbers += 1
        node = names[name] = Node(self._numbers, directory=directory)
        return node

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Yield everything below the root, with its path, a directory before what is in it."""
        places = [("", self._root)]
        for path, node in places:
            for name, child in sorted((node.names or {}).items()):
                at = f"{path}/{name}"
                yield at, child
                places.append((at, child))
