"""A file system as that of a Mac: it keeps the case of names, and does not tell them apart by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.testing import SimulatedFileSystem

if TYPE_CHECKING:
    from aiodq.storage.io.filesystem import File

__all__ = ["OneCase"]


class OneCase(SimulatedFileSystem):
    """What lies in a store is found by any case of its name."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        return super().open(self._as_made(path), write=write, create=create)

    def listdir(self, path: str) -> list[str]:
        return super().listdir(self._as_made(path))

    def is_directory(self, path: str) -> bool:
        return super().is_directory(self._as_made(path))

    def exists(self, path: str) -> bool:
        return super().exists(self._as_made(path))

    def make_directory(self, path: str) -> None:
        super().make_directory(self._as_made(path))

    def rename(self, source: str, target: str) -> None:
        super().rename(self._as_made(source), self._as_made(target))

    def remove(self, path: str) -> None:
        super().remove(self._as_made(path))

    def remove_directory(self, path: str) -> None:
        super().remove_directory(self._as_made(path))

    def _as_made(self, path: str) -> str:
        """Return the path with every name as it was made."""
        made = ""
        for name in path.removeprefix("/").split("/"):
            inside = super().listdir(made) if made and super().is_directory(made) else []
            made += "/" + next((one for one in inside if one.casefold() == name.casefold()), name)
        return made
