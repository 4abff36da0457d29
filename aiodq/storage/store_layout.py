"""The layout of a store's directory, and how to tell a store from any other directory."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.errors import InvalidNameError, InvalidOptionError, NotAStoreError, StorageError, StoreNotFoundError
from aiodq.names import check_name
from aiodq.storage.bulk.commits import COMMITS, STAGING, linked_writers, read_commits
from aiodq.storage.io.durable_io import (
    NOT_A_DIRECTORY,
    TEMPORARY,
    list_own,
    read_file,
    sweep_temporaries,
    sync_directory,
)
from aiodq.storage.io.filesystem import directory_exists, locked, name_exists
from aiodq.storage.io.lock import LOCK_NAME, RECORD_LIMIT, is_owner_record
from aiodq.storage.io.os_errors import is_lasting, os_errors, storage_error
from aiodq.storage.io.quarantine import is_quarantined
from aiodq.storage.state.assessment import CHANNELS
from aiodq.storage.state.format_versions import refuse_newer, refuse_newer_transactions
from aiodq.storage.state.holds import HOLDS
from aiodq.storage.state.owner_stats import FIGURES
from aiodq.storage.state.store_identity import STORE_FILE
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE
from aiodq.storage.state.transactions.parked_transactions import ASIDE, may_be_topic, read_owed
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS, read_transactions
from aiodq.storage.state.transactions.transaction_origins import ORIGINS
from aiodq.storage.state.watermark import WATERMARK
from aiodq.values import refuse, shown

if TYPE_CHECKING:
    from os import PathLike

    from aiodq.storage.io.filesystem import FileSystem

__all__ = [
    "CLIENTS",
    "NO_DIRECTORY",
    "OWN",
    "SOCKET",
    "absolute_path",
    "check_store_directory",
    "delete_topic",
    "directory_name",
    "has_topic",
    "has_topics",
    "holds_other_things",
    "in_the_way",
    "is_encodable",
    "list_topics",
    "misplaced",
    "refuse_inside_store",
    "remove_channel_files",
    "remove_tree",
    "require_own_directories",
    "require_store",
    "sweep_deleted",
]

_DELETED: Final = "#deleted"
"""A name that no topic may have. Two deletions never collide: what the first left goes before the second begins."""

_NO_STORE: Final = "{}, so no store is opened and, with create=False, none is made; is its volume mounted?"

NO_DIRECTORY: Final = "this is no directory"
"""What is said of a path to something else."""

SOCKET: Final = "#socket"
"""The socket on which the owner of a shared store listens."""

CLIENTS: Final = "#clients"
"""The clients that may hold messages of the owner, for which the next one waits."""

OWN: Final = frozenset({
    LOCK_NAME, TRANSACTIONS, ORIGINS, ASIDE, FIGURES, COMMITS, STAGING, HOLDS, SOCKET, CLIENTS, STORE_FILE,
})  # fmt: skip
"""What a store keeps beside its topics. No topic may have one of these names (`aiodq.names`)."""

_UNFINISHED: Final = frozenset({ORIGINS + TEMPORARY, STORE_FILE + TEMPORARY, TRANSACTIONS + TEMPORARY})
"""The unfinished replacements of files that only an owner writes, beside the topics."""

_HARMLESS: Final = OWN | {"lost+found"}
_TOPIC_ENTRIES: Final = frozenset({TOPIC_FILE, WATERMARK, CHANNELS})


def directory_name(what: str, path: str | PathLike[str], example: str) -> str:
    """Return a directory's path as a plain `str`: the system would treat numpy's strings as bytes.

    Args:
        what: the name of the argument.
        path: what was given.
        example: how to write it.

    Raises:
        InvalidOptionError: it is no path; a `TypeError` too.
        StorageError: it is empty, has a NUL in it, or is no Unicode.
    """
    try:
        text: object = os.fspath(path)
    except TypeError:  # no path, or what says that it is one and names none
        text = None
    if not isinstance(text, str):
        refuse(what, "the name of a directory (str or os.PathLike)", path, example, type_is_wrong=True)
    if "\0" in text or not text or not is_encodable(text):
        raise StorageError(f"{what} is the name of a directory, not {shown(path)}: {example}", "")
    return str.__str__(text)


def absolute_path(path: str | PathLike[str]) -> str:
    """Return the real path of a directory, all links resolved.

    Raises:
        InvalidOptionError: the path begins with `~`, or is no path, then also a `TypeError`.
        StorageError: the path is empty, has a NUL in it, or is relative and the working directory was deleted.
    """
    text = directory_name("path", path, "write 'data/jobs'")
    if text.startswith("~") and not os.path.lexists(text):
        raise InvalidOptionError(
            f"the path {text!r} begins with '~', which only a shell replaces: "
            f"write os.path.expanduser({text!r}), or {'./' + text!r} for a directory of that name"
        )
    try:
        return os.path.realpath(text)
    except FileNotFoundError as cause:
        what = "the path is relative, and the working directory was deleted: write an absolute one"
        raise StoreNotFoundError(what, text, errno=cause.errno) from cause
    except OSError as cause:
        raise storage_error(cause, text) from cause


def is_encodable(path: str) -> bool:
    """Return whether a path can be given to the system, which text with a lone surrogate cannot."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def check_store_directory(fs: FileSystem, path: str) -> None:
    """Check that a directory is a store, or is empty and may become one.

    A store is a directory that holds a topic, or a `LOCK` that an owner has written, whatever lies beside them; or,
    beside a `LOCK` of which a power cut has left the name alone, nothing but what an owner leaves when it is killed
    while it creates or deletes a topic.

    Raises:
        NotAStoreError: it holds something else, or is not a directory; nothing was touched.
        StoreNotFoundError: there is nothing under that path.
        StorageError: as mapped from the system's error.
    """
    try:
        names = fs.listdir(path)
        mine = LOCK_NAME in names
        others = [name for name in names if not _is_harmless(name)]
        if all(mine and _is_remnant(fs, path, name) for name in others):
            return
        # Parked transactions of a topic that cannot be created may be all that a store holds.
        if (mine and (TRANSACTIONS in names or ASIDE in names)) or any(_is_topic(fs, path, name) for name in names):
            return
        if mine and _was_locked(fs, path):
            return
    except NotADirectoryError as cause:
        raise NotAStoreError(NO_DIRECTORY, path) from cause
    except OSError as cause:
        raise storage_error(cause, path) from cause
    raise NotAStoreError(f"the directory is not empty and holds no topic, {_unless_hidden(fs, path, others)}", path)


def _unless_hidden(fs: FileSystem, path: str, names: list[str]) -> str:
    """Return what follows from a directory in which no topic is seen, for an error: one may be hidden from this user.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        hidden = [name for name in names if _is_topic(fs, path, name, unreadable=True)]
    return f"unless {hidden[0]!r} is one: permission is denied to look into it" if hidden else "so it is no aiodq store"


def refuse_inside_store(fs: FileSystem, path: str) -> None:
    """Check that a directory, which may be missing, does not lie among a store's own files, which it could remove.

    A topic is deleted with everything in its directory; staged files and the remains of deletions are swept. Beside
    the topics there may be anything.

    Raises:
        NotAStoreError: it lies there; nothing was touched.
    """
    inner, outer = path, os.path.dirname(path)
    while outer != inner:
        name = os.path.basename(inner)
        if _is_its_own(fs, outer, name):
            why = "which may remove it with what is its own: choose a place outside"
            raise NotAStoreError(f"this lies inside {name!r} of the store {outer}, {why}", path)
        inner, outer = outer, os.path.dirname(outer)


def _is_its_own(fs: FileSystem, directory: str, name: str) -> bool:
    """Return whether a directory is a store, and this is a topic of it, or what it keeps beside its topics."""
    try:
        if not (fs.exists(os.path.join(directory, LOCK_NAME)) and ("#" in name or _is_topic(fs, directory, name))):
            return False
        check_store_directory(fs, directory)
    except (OSError, StorageError):
        return False  # it is something else, or nothing that this process can look into
    return True


def require_store(fs: FileSystem, path: str) -> None:
    """Check that there is a store, not just a place where one could be made.

    Raises:
        StoreNotFoundError: there is nothing under that path, or an empty directory.
        StorageError: as mapped from the system's error.
    """
    try:
        names = fs.listdir(path)
    except FileNotFoundError as cause:
        raise StoreNotFoundError(_NO_STORE.format("there is nothing under this path"), path) from cause
    except NotADirectoryError as cause:
        raise NotAStoreError(NO_DIRECTORY, path) from cause
    except OSError as cause:
        raise storage_error(cause, path) from cause
    if LOCK_NAME not in names and all(map(_is_harmless, names)):
        raise StoreNotFoundError(_NO_STORE.format("this directory is empty"), path)


def list_topics(fs: FileSystem, path: str) -> list[str]:
    """Return the names of a store's topics: directories with a description or a segment in them.

    A directory that cannot be read because of its permissions counts, as it may be a topic.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        return [name for name in fs.listdir(path) if _is_topic(fs, path, name, unreadable=True)]


def has_topic(fs: FileSystem, path: str, name: str) -> bool:
    """Return whether `list_topics` would name this one, without looking at the others.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        return _is_topic(fs, path, name, unreadable=True)


def has_topics(fs: FileSystem, path: str) -> bool:
    """Return whether `list_topics` would name any, without looking at the others.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        return any(_is_topic(fs, path, name, unreadable=True) for name in fs.listdir(path))


def _owed_topics(fs: FileSystem, store: str) -> set[str]:
    """Return the topics for which something is committed that they may not hold yet. Blocking.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    names = set(read_owed(fs, store))
    names |= {part.topic for block in read_transactions(fs, store).blocks for part in block.commit.puts}
    return names.union(*(commit.topics for commit in read_commits(fs, store).pending))


def in_the_way(fs: FileSystem, store: str) -> dict[str, str]:
    """Return, by topic, the path of each non-directory that lies where the topic's directory would be. Blocking.

    The store's own files do not count: no topic may have their names.

    Raises:
        FormatVersionError: a newer version.
        StorageError: as mapped from the system's error.
    """
    paths = {name: os.path.join(store, name) for name in _owed_topics(fs, store) if may_be_topic(fs, store, name)}
    return {name: path for name, path in paths.items() if name_exists(fs, path) and not directory_exists(fs, path)}


def misplaced(fs: FileSystem, store: str) -> list[str]:
    """Return the paths of files and links in the place of the store's own directories. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    paths = [os.path.join(store, name) for name in (COMMITS, STAGING, HOLDS, ASIDE)]
    wrong = [path for path in paths if name_exists(fs, path) and not directory_exists(fs, path)]
    staging = os.path.join(store, STAGING)
    return wrong if staging in wrong else [*wrong, *linked_writers(fs, store)]


def require_own_directories(fs: FileSystem, store: str) -> None:
    """Check that nothing is `misplaced`, before anything is decided by what the store's directories hold. Blocking.

    Raises:
        StorageError: something is, or as mapped from the system's error.
    """
    for path in misplaced(fs, store):
        raise StorageError(NOT_A_DIRECTORY, path)


def _has_own_directory(fs: FileSystem, path: str) -> bool:
    """Return whether there is a directory of just this name: some file systems find one that differs in case, too.

    Raises:
        OSError: as the system gave it.
    """
    parent, name = os.path.split(path)
    return fs.is_directory(path) and name in fs.listdir(parent)


def holds_other_things(fs: FileSystem, path: str, name: str) -> bool:
    """Return whether a directory of this name is no topic, and contains files that aiodq has not made.

    Raises:
        OSError: as the system gave it.
    """
    there = fs.is_directory(os.path.join(path, name))
    return there and not _is_topic(fs, path, name, unreadable=True) and not _is_remnant(fs, path, name)


def delete_topic(fs: FileSystem, path: str, name: str) -> None:
    """Delete a topic's directory. A missing one is fine, and one of other things stays.

    Raises:
        StorageError: another store lies there, which stays; or as mapped from the system's error.
        StoreFailedError: a power cut may bring the topic back.
    """
    directory, doomed = os.path.join(path, name), os.path.join(path, name + _DELETED)
    with os_errors(path):
        if not _has_own_directory(fs, directory):
            return
        if fs.exists(os.path.join(directory, LOCK_NAME)):
            raise StorageError("another store lies where this topic would, and stays", directory)
        if holds_other_things(fs, path, name):
            return
        if fs.exists(doomed):  # an earlier deletion could not remove it, and nothing is renamed to where something is
            remove_tree(fs, doomed)
        # CRASH: 8. Under its new name it is no longer a topic, and the next owner sweeps it.
        fs.rename(directory, doomed)
        sync_directory(fs, path)
        remove_tree(fs, doomed)


def remove_channel_files(fs: FileSystem, directory: str) -> None:
    """Remove a channel's directory with all that is in it. A missing one is fine.

    Raises:
        StorageError: as mapped from the system's error.
    """
    with os_errors(directory):
        if _has_own_directory(fs, directory):
            remove_tree(fs, directory)


def sweep_deleted(fs: FileSystem, path: str, done: set[str] | None = None) -> None:
    """Remove what interrupted deletions of topics and replacements of files left: the first change of an owner.

    Args:
        fs: the store's.
        path: its directory.
        done: as for `read_commits`.

    Raises:
        FormatVersionError: a file of the store has a newer version; nothing was touched.
        StorageError: as mapped from the system's error.
    """
    with os_errors(path):
        refuse_newer_transactions(fs, path)
        read_commits(fs, path, done=done)
        for name in list_topics(fs, path):
            _refuse_newer_topic(fs, os.path.join(path, name))
        for name in fs.listdir(path):
            at = os.path.join(path, name)
            if name.endswith(_DELETED) and fs.is_directory(at):
                remove_tree(fs, at)
            elif name in _UNFINISHED and not fs.is_directory(at):
                # CRASH: the file may be there again, and the next owner removes it.
                fs.remove(at)
        for name in (HOLDS, COMMITS):
            _sweep_shared(fs, os.path.join(path, name))


def _sweep_shared(fs: FileSystem, directory: str) -> None:
    """Remove what killed writers left where other processes write, too, unless one is writing now or it is refused."""
    # Without a leftover, no lock is taken that a writer would have to wait for.
    if any(name.endswith(TEMPORARY) for name in list_own(fs, directory)):
        with suppress(StorageError):
            # INVARIANT: whoever writes here holds this lock, or the store's, which this owner has.
            lock = locked(fs, directory)
            try:
                # CRASH: the files may be there again, and the next owner removes them.
                sweep_temporaries(fs, directory)
            finally:
                lock.release()


def _refuse_newer_topic(fs: FileSystem, directory: str) -> None:
    try:
        refuse_newer(fs, directory)
    except OSError as cause:
        if not is_lasting(storage_error(cause, directory)):
            raise
    except StorageError as error:
        # A file that can never be read costs this topic alone, and opening the topic will find that out.
        if not is_lasting(error):
            raise


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a directory with all that is in it.

    Raises:
        OSError: as the system gave it; a part of it is left.
    """
    for name in fs.listdir(path):
        entry = os.path.join(path, name)
        if fs.is_directory(entry):
            remove_tree(fs, entry)
        else:
            fs.remove(entry)
    fs.remove_directory(path)


def _was_locked(fs: FileSystem, path: str) -> bool:
    """Return whether a store's owner has written this directory's `LOCK`: other programs use that name, too."""
    try:
        record = read_file(fs, os.path.join(path, LOCK_NAME), RECORD_LIMIT)
    except StorageError:
        return False  # no regular file, or another user's
    return record is not None and is_owner_record(record)


def _is_harmless(name: str) -> bool:
    kept = name.startswith((TRANSACTIONS, ORIGINS, STORE_FILE)) and is_quarantined(name)
    return name in _HARMLESS or name.endswith(TEMPORARY) or kept


def _is_remnant(fs: FileSystem, path: str, name: str) -> bool:
    """Return whether this is a half-deleted or half-created topic that holds no foreign file."""
    directory = os.path.join(path, name)
    if not fs.is_directory(directory):
        return False
    if name.endswith(_DELETED):
        return True
    with suppress(InvalidNameError):
        check_name(name)
        try:
            if _is_unreadable(fs, directory):
                return True
            entries = fs.listdir(directory)
        except FileNotFoundError:
            return True  # its owner deleted it just now
        return all(entry in _TOPIC_ENTRIES or entry.endswith(TEMPORARY) or is_quarantined(entry) for entry in entries)
    return False


def _is_unreadable(fs: FileSystem, directory: str) -> bool:
    try:
        fs.listdir(directory)
    except PermissionError:
        return True
    return False


def _is_topic(fs: FileSystem, path: str, name: str, *, unreadable: bool = False) -> bool:
    try:
        check_name(name)
    except InvalidNameError:
        return False
    directory = os.path.join(path, name)
    if not fs.is_directory(directory):
        return False
    with suppress(FileNotFoundError):  # its owner deleted it just now
        try:
            return any(entry == TOPIC_FILE or entry.endswith(".seg") for entry in fs.listdir(directory))
        except PermissionError:
            return unreadable
    return False
