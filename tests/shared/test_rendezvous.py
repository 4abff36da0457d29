"""How processes find the owner of a store: by a socket that is there only while somebody listens, or listened."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

import pytest

import aiodq
from aiodq.errors import ProtocolError, ReadOnlyError, StorageError
from aiodq.shared.client import remote_store
from aiodq.shared.client.remote_store import RemoteStore
from aiodq.shared.connection.finding import owner_search, rendezvous
from aiodq.shared.connection.finding.rendezvous import check_client, connect, listen, owner_of
from aiodq.storage.io.durable_io import TEMPORARY
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.store_layout import SOCKET


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def talk(directory: Path, listening: rendezvous.Listening) -> bool:
    client = connect(str(directory))
    assert client is not None
    served, _ = listening.sock.accept()
    with client, served:
        check_client(served, listening.path, listening.user)
        client.send(b"hello")
        return served.recv(5) == b"hello"


def test_an_owner_is_found_as_long_as_it_listens(tmp_path: Path) -> None:
    assert connect(str(tmp_path)) is None
    listening = listen(str(tmp_path))
    assert names(tmp_path) == [SOCKET]
    assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
    assert not listening.sock.getblocking()
    assert talk(tmp_path, listening)
    listening.close()
    assert names(tmp_path) == []
    assert connect(str(tmp_path)) is None


def test_a_socket_that_never_had_its_final_name_is_deleted_by_the_next_owner(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/{SOCKET}-0badbeef{TEMPORARY}")
    others = [f"{SOCKET}-mine", f"mine{TEMPORARY}"]
    for name in others:
        (tmp_path / name).touch()
    listening = listen(str(tmp_path))
    assert names(tmp_path) == sorted([SOCKET, *others])
    listening.close()


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777], ids=oct)
def test_no_umask_lets_others_in(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        listening = listen(str(tmp_path))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
    listening.close()


def test_what_a_killed_owner_left_is_nobodys_and_the_next_takes_the_name(tmp_path: Path) -> None:
    left = listen(str(tmp_path))
    left.sock.close()  # as the kernel does
    assert names(tmp_path) == [SOCKET]
    assert connect(str(tmp_path)) is None
    listening = listen(str(tmp_path))
    left.close()
    assert names(tmp_path) == [SOCKET], "it is the next one's"
    assert talk(tmp_path, listening)
    listening.close()


def test_a_store_may_lie_deeper_than_a_sockets_path_is_long(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 200) / ("b" * 200)
    deep.mkdir(parents=True)
    listening = listen(str(deep))
    assert talk(deep, listening)
    listening.close()
    assert names(deep) == []


def test_without_proc_a_path_that_is_too_long_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd")
    deep = tmp_path / ("a" * 100)
    deep.mkdir()
    with pytest.raises(StorageError, match="up to 80 bytes"):
        listen(str(deep))
    assert names(deep) == []
    with tempfile.TemporaryDirectory() as short:
        listening = listen(short)
        assert talk(Path(short), listening)
        listening.close()


def test_without_proc_a_path_is_as_long_as_the_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda path: path != "/proc/self/fd")
    with tempfile.TemporaryDirectory() as short:
        deep = Path(short, "a" * (107 - len(os.fsencode(f"{short}//{SOCKET}-01234567{TEMPORARY}"))))
        deep.mkdir()
        listening = listen(str(deep))
        assert talk(deep, listening)
        listening.close()
        with pytest.raises(StorageError, match="up to 80 bytes"):
            listen(f"{deep}b")


def test_the_socket_of_a_store_is_its_users_though_root_owns_it(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes files for others")
    os.chown(tmp_path, 65534, 65534)
    listening = listen(str(tmp_path))
    found = (tmp_path / SOCKET).lstat()
    listening.close()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (65534, 65534, 0o600)


def test_a_process_of_root_may_connect_to_anybodys_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    one, other = socket.socketpair()
    with one, other:
        check_client(one, "s", os.getuid() or 54321)


def test_what_is_no_socket_is_left_alone_and_named(tmp_path: Path) -> None:
    (tmp_path / SOCKET).write_bytes(b"mine")
    with pytest.raises(ProtocolError, match="is no socket"):
        connect(str(tmp_path))
    assert (tmp_path / SOCKET).read_bytes() == b"mine"


def test_a_start_that_failed_leaves_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StorageError):
        listen(str(tmp_path))
    assert names(tmp_path) == []


def test_another_users_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = listen(str(tmp_path))
    real = socket.socket.getsockopt

    def forged(self: socket.socket, level: int, name: int, size: int = 0) -> object:
        if name == socket.SO_PEERCRED:
            return struct.pack("iII", 1, 54_321, 1)
        return real(self, level, name, size)

    monkeypatch.setattr(socket.socket, "getsockopt", forged)
    with pytest.raises(ProtocolError, match="of user 54321"):
        connect(str(tmp_path))
    served, _ = listening.sock.accept()
    with served, pytest.raises(ProtocolError, match="of user 54321"):
        check_client(served, listening.path, listening.user)
    listening.close()


def test_who_may_not_connect_to_another_users_store_is_told_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(rendezvous, "_check_kind", refused)
    with pytest.raises(ReadOnlyError, match="not permitted: Permission denied"):
        connect(str(tmp_path))
    here = os.geteuid()
    listening = listen(str(tmp_path))
    with monkeypatch.context() as another:
        another.setattr(os, "lstat", lambda _: os.stat_result((0, 0, 0, 0, 12345, 0, 0, 0, 0, 0)))
        with pytest.raises(ReadOnlyError, match="is user 12345's"):
            connect(str(tmp_path))
    listening.close()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(ReadOnlyError, match=f"is user {here}'s, and this process is of user 54321: have all"):
        connect(str(tmp_path))


async def test_who_may_not_look_into_a_store_is_told_what_the_system_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def refused(_fs: object, path: str) -> None:
        raise ReadOnlyError("not permitted", path, errno=errno.EACCES) from cause

    monkeypatch.setattr(remote_store, "check_store_directory", refused)
    for user in (os.geteuid(), 54321):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(ReadOnlyError) as caught:
            await aiodq.open(tmp_path, mode="client")
        assert caught.value.__cause__ is cause


def test_a_full_queue_of_connections_is_one_to_come_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_BACKLOG", 0)
    listening = listen(str(tmp_path))
    first = connect(str(tmp_path))
    assert first is not None
    with pytest.raises(BlockingIOError):
        for _ in range(4):
            assert connect(str(tmp_path)) is not None
    served, _ = listening.sock.accept()
    served.close()
    first.close()
    listening.close()
    assert connect(str(tmp_path)) is None


async def test_who_comes_to_a_full_queue_waits_and_does_not_try_to_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    refused = iter(range(3))

    def crowded(directory: str) -> socket.socket | None:
        if next(refused, None) is not None:
            raise BlockingIOError
        return connect(directory)

    async with aiodq.open(tmp_path / "s", mode="shared") as owner:
        await owner.queue("jobs").put(b"a")
        monkeypatch.setattr(owner_search, "connect", crowded)
        own = RemoteStore._own

        async def owning(store: RemoteStore) -> bool:
            tried.append(1)
            return await own(store)

        monkeypatch.setattr(RemoteStore, "_own", owning)
        async with aiodq.open(tmp_path / "s", mode="shared") as other:
            assert await other.queue("jobs").put(b"b") == 1
    assert tried == []


def test_the_owner_is_named_without_asking_it(tmp_path: Path) -> None:
    assert owner_of(str(tmp_path / "missing")) == 0
    assert owner_of(str(tmp_path)) == 0
    lock = StoreLock.acquire(str(tmp_path))
    assert owner_of(str(tmp_path)) == os.getpid()
    lock.release()
