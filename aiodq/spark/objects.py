"""Object storage as a read-only file system: URLs are read through fsspec, other paths from this machine's disks.

Sealed segments never change, so a copy of them in a bucket, with the topic's description, reads as a store does.
Nothing here overwrites an object, and a store in a bucket has no owner.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from glob import has_magic
from itertools import takewhile
from operator import eq
from typing import TYPE_CHECKING, Any, Final, NoReturn

from aiodq.errors import InvalidOptionError, MissingExtraError
from aiodq.spark.worker import is_in_files_of_session
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.segments.segment_files import segment_base
from aiodq.storage.store_layout import refuse_inside_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiodq.format.layout import BytesLike
    from aiodq.storage.io.filesystem import File, FileSystem, Lock

__all__ = [
    "AnyFileSystem",
    "check_outside_stores",
    "find_objects",
    "find_urls",
    "full_path",
    "is_url",
    "local_path",
    "numbered",
]

_FILE: Final = re.compile("file:(//(localhost)?)?(?=/)")
_ONE_SLASH: Final = re.compile("([A-Za-z][A-Za-z0-9+]+:)/(?!/)")
"""Matches the beginning of a path that looks like a URL with one slash too few."""


def local_path(path: str) -> str:
    """Return the local path of a `file:///data` URL, as Spark writes it; any other path unchanged.

    Raises:
        InvalidOptionError: it names another machine, begins with a `~` that no shell has replaced, or looks like a
            URL with one slash too few.
    """
    if path.startswith("~") and not os.path.lexists(path):
        raise InvalidOptionError(
            f"the path {path!r} begins with '~', which only a shell replaces: write os.path.expanduser({path!r})"
        )
    if not path.startswith("file:"):
        one_slash = _ONE_SLASH.match(path)
        if one_slash is not None and not os.path.lexists(one_slash[1]):
            scheme = one_slash[1]
            raise InvalidOptionError(
                f"the path {path!r} has one slash after {scheme!r}: write {scheme}/{path.removeprefix(scheme)} for a "
                f"URL, or ./{path} for a directory of that name"
            )
        return path
    found = _FILE.sub("", path, count=1)
    if found.startswith("//"):
        raise InvalidOptionError(
            f"the path {path!r} names a machine, {found[2:].partition('/')[0]!r}: this one's are file:///shop, or /shop"
        )
    return found


def full_path(path: str) -> str:
    """Return an absolute path, as Spark's JVM and workers may have other working directories.

    Raises:
        InvalidOptionError: as for `local_path`; or the path is relative, and the session is one of Spark Connect.
    """
    found = local_path(path)
    if is_url(found) or os.path.isabs(found):
        return found
    if is_in_files_of_session():
        raise InvalidOptionError(
            f"the path {path!r} is relative, which over Spark Connect means a temporary directory of the session on "
            f"the server, and what is written there goes with it: write the full path that the store has on the server"
        )
    return os.path.join(os.getcwd(), found)


def is_url(path: str) -> bool:
    """Return whether a path is a URL of object storage."""
    return "://" in path


def check_outside_stores(directory: str) -> None:
    """Make sure that what Spark makes there is kept: a result, or a checkpoint, without which all is written again.

    Blocking.

    Raises:
        InvalidOptionError: no path can be meant by it.
        NotAStoreError: it lies among a store's own files, such as a topic's, which are removed with the topic.
    """
    # Spark itself goes there: with one slash, too, a URL of Hadoop's names a place elsewhere, such as hdfs:/state.
    if directory.startswith("file:") or not (is_url(directory) or _ONE_SLASH.match(directory)):
        refuse_inside_store(OsFileSystem(), os.path.realpath(local_path(directory)))


def find_objects(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path within it.

    Raises:
        MissingExtraError: fsspec, or the package that it needs for this kind of URL, is not installed.
        InvalidOptionError: a name in a bucket begins with a slash: it could be written, but not listed.
        OSError: fsspec does not know this kind of URL.
    """
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra that may be missing
    except ImportError as cause:
        raise MissingExtraError("object storage needs the extra 'objects': pip install 'aiodq[objects]'") from cause
    try:
        # Without its cache, so that objects are seen that are added while this process runs.
        fs, path = url_to_fs(url, use_listings_cache=False)
    except ImportError as cause:
        raise MissingExtraError(f"fsspec needs more for {url!r}: {cause}") from cause
    except ValueError as cause:
        raise OSError(errno.EINVAL, str(cause)) from cause
    bucket, _, name = path.partition("/")
    if bucket and name.startswith("/") and "://" not in path:  # fsspec's paths of HTTP are whole URLs
        meant = url.replace(f"{bucket}/{name}", f"{bucket}/{name.lstrip('/')}")
        raise InvalidOptionError(f"the path {url!r} has two slashes after {bucket!r}: write {meant}")
    return fs, path


def find_urls(pattern: str) -> list[str]:
    """Return the URLs that a pattern matches, sorted; the pattern itself if it is the name of a directory. Blocking.

    They begin as the pattern does: a path does not tell the machine, nor the cache that a URL may name as well.

    Raises:
        MissingExtraError: as for `find_objects`.
        InvalidOptionError: as for `find_objects`; or the bucket is named by a pattern.
        OSError: as for `find_objects`; or they could not be listed.
    """
    fs, place = find_objects(pattern)
    if has_magic(bucket := place.partition("/")[0]):
        raise InvalidOptionError(
            f"the path {pattern!r} has a pattern in the place of the bucket, {bucket!r}: name the bucket; a pattern is "
            f"of places in it, as s3://bucket/*"
        )
    if _kind(fs, place) == "directory":
        return [pattern]
    spelled = pattern.rstrip("/")
    shared = sum(1 for _ in takewhile(bool, map(eq, reversed(spelled), reversed(place))))
    before, within = spelled[: len(spelled) - shared], place[: len(place) - shared]
    with numbered():
        return sorted(before + str(name).removeprefix(within) for name in fs.glob(place))


_NUMBERS: Final = (
    (FileNotFoundError, errno.ENOENT),
    (NotADirectoryError, errno.ENOTDIR),
    (PermissionError, errno.EACCES),
    (FileExistsError, errno.EEXIST),
)


@contextmanager
def numbered() -> Iterator[None]:
    """Raise `OSError` with an errno for the errors of the block: fsspec's file systems raise various exceptions.

    Its text begins with the system's for that errno.
    """
    try:
        yield
    except Exception as cause:
        if isinstance(cause, OSError) and cause.errno is not None:
            number, text = cause.errno, str(cause.strerror or cause)
            if text.startswith(os.strerror(number)):
                raise
        else:
            number = next((number for kind, number in _NUMBERS if isinstance(cause, kind)), errno.EIO)
            text = str(cause)
        raise OSError(number, f"{os.strerror(number)}: {text}") from cause


def _kind(fs: Any, place: str) -> str | None:  # noqa: ANN401 - fsspec has no types
    """Return the type of what is there, "file" or "directory"; None if there is nothing.

    fsspec's own `exists` and `isdir` return False after any error. A manifest that a network error hides for a moment
    would then be replaced by an empty one.

    Raises:
        OSError: it could not be determined.
    """
    try:
        with numbered():
            return str(fs.info(place)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refuse() -> NoReturn:
    raise OSError(errno.EROFS, "a store in object storage is read; only its owner's machine writes to one")


class _Object:
    """One object, open for reading: each read is a request for a range."""

    def __init__(self, fs: Any, path: str, size: int) -> None:  # noqa: ANN401 - fsspec has no types
        self._fs = fs
        self._path = path
        self._size = size

    def read_at(self, size: int, position: int) -> bytes:
        end = min(position + size, self._size)
        with numbered():
            return bytes(self._fs.cat_file(self._path, start=position, end=end)) if end > position else b""

    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def write_at(self, buffers: Sequence[BytesLike], position: int) -> int:  # noqa: ARG002 - File's
        _refuse()

    def truncate(self, size: int) -> None:  # noqa: ARG002 - File's
        _refuse()

    def sync(self) -> None:
        _refuse()


class _Whole(_Object):
    """One object that may be replaced while it is read, so one request reads it: two could return two versions."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]

    def size(self) -> int:
        return len(self._data)


class AnyFileSystem:
    """A `FileSystem` of this machine's files, and read-only of objects by their URLs. It is sent to tasks."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `FileSystem.open`."""
        if not is_url(path):
            return OsFileSystem().open(path, write=write, create=create)
        if write or create:
            _refuse()
        fs, place = find_objects(path)
        with numbered():
            if segment_base(path) is None:
                return _Whole(bytes(fs.cat_file(place)))
            return _Object(fs, place, int(fs.size(place)))

    def listdir(self, path: str) -> list[str]:
        """See `FileSystem.listdir`."""
        if not is_url(path):
            return OsFileSystem().listdir(path)
        fs, place = find_objects(path)
        with numbered():
            found = [str(name).rstrip("/") for name in fs.ls(place, detail=False)]
        return sorted({name.rpartition("/")[2] for name in found if name != place.rstrip("/")})

    def is_directory(self, path: str) -> bool:
        """See `FileSystem.is_directory`."""
        if not is_url(path):
            return OsFileSystem().is_directory(path)
        fs, place = find_objects(path)
        return _kind(fs, place) == "directory"

    def exists(self, path: str) -> bool:
        """See `FileSystem.exists`."""
        if not is_url(path):
            return OsFileSystem().exists(path)
        fs, place = find_objects(path)
        return _kind(fs, place) is not None

    def make_directory(self, path: str) -> None:
        """See `FileSystem.make_directory`."""
        _local(path).make_directory(path)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem.rename`."""
        _local(target).rename(source, target)

    def remove(self, path: str) -> None:
        """See `FileSystem.remove`."""
        _local(path).remove(path)

    def remove_directory(self, path: str) -> None:
        """See `FileSystem.remove_directory`."""
        _local(path).remove_directory(path)

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`."""
        _local(path).sync_directory(path)

    def lock(self, path: str) -> Lock:
        """See `FileSystem.lock`."""
        return _local(path).lock(path)


def _local(path: str) -> FileSystem:
    return _refuse() if is_url(path) else OsFileSystem()
