"""One owner per store directory, whatever happens to the owner or to the file that names it."""

from __future__ import annotations

import errno
import gc
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import lock_descriptor

from aiodq.errors import NotAStoreError, ReadOnlyError, StorageError, StoreLockedError
from aiodq.storage.io import lock as lock_module
from aiodq.storage.io.lock import LOCK_NAME, LockHolder, StoreLock, in_turn, is_locked, lock_holder
from tests.containers import in_a_container
from tests.processes import environment, killed_at_last

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65534
OWNER = """
import sys
from aiodq.storage.io.lock import StoreLock
lock = StoreLock.acquire(sys.argv[1])
print("owned", flush=True)
sys.stdin.readline()
"""
FORKING = """
import gc, os, sys
from aiodq.storage.io.lock import StoreLock
lock = StoreLock.acquire(sys.argv[1])
pass
child = os.fork()
"""
# What a C extension that forks by itself comes to: the class's hook does nothing.
UNHOOKED = "from aiodq.storage.io import lock as module; module._LIVE.clear()"
ONLY_LINUX = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store's directory."""
    directory = tmp_path / "store"
    directory.mkdir(mode=0o700)
    return directory


@contextmanager
def running(code: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a script on the directory; stop it at the end."""
    command = [sys.executable, "-c", code, str(directory)]
    with killed_at_last(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line of the process."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end_input(process: subprocess.Popen[str]) -> None:
    """Let a script that waits for its input go on."""
    assert process.stdin is not None
    process.stdin.close()


def refused(directory: Path | str) -> StoreLockedError:
    """Try to own the directory; return the refusal."""
    with pytest.raises(StoreLockedError) as caught:
        StoreLock.acquire(str(directory))
    return caught.value


def owner_in(directory: Path) -> list[str]:
    """Return what LOCK says."""
    return (directory / LOCK_NAME).read_text(encoding="utf-8").split()


@contextmanager
def owned(directory: Path) -> Iterator[StoreLock]:
    """Own the directory for a while."""
    lock = StoreLock.acquire(str(directory))
    try:
        yield lock
    finally:
        lock.release()


def open_descriptors() -> int:
    """Count this process's descriptors."""
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def unprivileged() -> Iterator[None]:
    """Drop root, to whom permissions mean nothing."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_owner_is_written_into_the_file(store: Path) -> None:
    """LOCK holds pid and host of the owner, and no pid after it let go."""
    lock = StoreLock.acquire(str(store))
    assert lock.held_here()
    assert lock.pid == os.getpid()
    assert owner_in(store) == [str(os.getpid()), socket.gethostname()]
    lock.release()
    assert not lock.held_here()
    assert owner_in(store) == ["-", socket.gethostname()]


def test_release_is_idempotent(store: Path) -> None:
    """A second release does not touch the lock someone else took in between."""
    first = StoreLock.acquire(str(store))
    first.release()
    second = StoreLock.acquire(str(store))
    first.release()
    assert second.held_here()
    assert refused(store).pid == os.getpid()
    second.release()


def test_second_object_is_refused(store: Path) -> None:
    """Within one process too, and the error says who and where."""
    lock = StoreLock.acquire(str(store))
    error = refused(store)
    lock.release()
    assert error.pid == os.getpid()
    assert error.path == str(store)
    assert error.retriable
    assert f"process {os.getpid()} on {socket.gethostname()}" in str(error)
    assert str(store) in str(error)


def test_other_names_of_the_directory_are_the_same_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A symbolic link, a relative path and a trailing slash lead to the same owner, in both directions."""
    link = store.parent / "link"
    link.symlink_to(store, target_is_directory=True)
    monkeypatch.chdir(store.parent)
    names = [str(store), str(link), "store", "./link/", "store/../link"]
    for held in names:
        lock = StoreLock.acquire(held)
        for wanted in names:
            error = refused(wanted)
            assert (error.pid, error.path) == (os.getpid(), wanted)
        lock.release()


def test_threads_get_one_owner(store: Path) -> None:
    """Of many threads that start at once, one wins."""
    barrier = threading.Barrier(16)
    won: list[StoreLock] = []
    lost: list[StoreLockedError] = []

    def contend() -> None:
        barrier.wait()
        try:
            won.append(StoreLock.acquire(str(store)))
        except StoreLockedError as exc:
            lost.append(exc)

    threads = [threading.Thread(target=contend) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 15)
    won[0].release()


def test_second_process_is_refused(store: Path) -> None:
    """However often it tries, it reads the owner's pid, and it gets in once the owner is gone."""
    with running(OWNER, store) as owner:
        assert line(owner) == "owned"
        assert [refused(store).pid for _ in range(5)] == [owner.pid] * 5
        assert owner_in(store)[0] == str(owner.pid)
        end_input(owner)
        owner.wait()
    StoreLock.acquire(str(store)).release()


def test_killed_owner_blocks_nobody(store: Path) -> None:
    """What SIGKILL leaves behind is overwritten, without a rest of the longer text before."""
    with running(OWNER, store) as owner:
        assert line(owner) == "owned"
        owner.kill()
        owner.wait()
        assert owner_in(store)[0] == str(owner.pid)
    with (store / LOCK_NAME).open("a", encoding="utf-8") as file:
        file.write("rest of an older text\n" * 10)
    lock = StoreLock.acquire(str(store))
    assert owner_in(store) == [str(os.getpid()), socket.gethostname()]
    assert refused(store).pid == os.getpid()
    lock.release()


def test_child_does_not_keep_a_dead_parents_lock(store: Path) -> None:
    """A forked child that outlives its killed parent is not the owner."""
    code = FORKING + "if not child: print('child', flush=True)\nsys.stdin.readline()\nprint('alive', flush=True)"
    with running(code, store) as parent:
        assert line(parent) == "child"
        parent.kill()
        parent.wait()
        StoreLock.acquire(str(store)).release()
        end_input(parent)
        assert line(parent) == "alive"


@pytest.mark.parametrize("hook", ["pass", UNHOOKED], ids=["fork", "fork-unseen-by-python"])
def test_child_does_not_keep_a_released_lock(store: Path, hook: str) -> None:
    """A parent's release is one, whatever children it has, and whatever those inherited."""
    code = FORKING + "if child: lock.release(); print('released', flush=True)\nsys.stdin.readline()"
    with running(code.replace("pass", hook), store) as parent:
        assert line(parent) == "released"
        StoreLock.acquire(str(store)).release()
        end_input(parent)


@pytest.mark.parametrize(
    "deed",
    ["pass", "lock.release()", "del lock; gc.collect()", "sys.exit()", "os._exit(0)", "lock.release(); lock.release()"],
)
@pytest.mark.parametrize("hook", ["pass", UNHOOKED], ids=["fork", "fork-unseen-by-python"])
def test_child_does_not_release_the_parents_lock(store: Path, deed: str, hook: str) -> None:
    """Nothing a child does to its copy reaches the parent's lock or the pid in the file."""
    code = (
        FORKING.replace("pass", hook)
        + f"""
if not child:
    print(lock.held_here(), flush=True)
    {deed}
    sys.exit()
os.waitpid(child, 0)
print(lock.held_here(), flush=True)
sys.stdin.readline()
"""
    )
    with running(code, store) as parent:
        assert [line(parent), line(parent)] == ["False", "True"]
        assert refused(store).pid == parent.pid
        assert owner_in(store)[0] == str(parent.pid)
        (store / LOCK_NAME).unlink()
        assert refused(store).pid is None


def test_child_can_own_by_itself(store: Path) -> None:
    """After the parent let go, the child's own acquire works, and the inherited object does not disturb it."""
    code = (
        FORKING
        + """
if child:
    lock.release()
    print("released", flush=True)
    os.waitpid(child, 0)
else:
    sys.stdin.readline()
    mine = StoreLock.acquire(sys.argv[1])
    lock.release()
    print(os.getpid(), mine.pid, mine.held_here(), flush=True)
    sys.stdin.readline()
"""
    )
    with running(code, store) as parent:
        assert line(parent) == "released"
        assert parent.stdin is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        child, pid, held = line(parent).split()
        assert (child, held) == (pid, "True")
        assert refused(store).pid == int(child)
        end_input(parent)


@ONLY_LINUX
def test_fork_in_the_middle_of_acquire(store: Path) -> None:
    """A child forked by another thread while the directory is being opened inherits no descriptor of it."""
    code = """
import os, sys, threading
from aiodq.storage.io.lock import StoreLock
real, forked, threads = os.open, threading.Event(), []
def fork():
    if not os.fork():
        names = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                 and os.path.lexists(f"/proc/self/fd/{fd}")]
        print([name for name in names if name.startswith(os.path.realpath(sys.argv[1]))], flush=True)
        os._exit(0)
    forked.set()
def opened(*args, **kwargs):
    fd = real(*args, **kwargs)
    if not threads:
        threads.append(threading.Thread(target=fork))
        threads[0].start()
        forked.wait(0.5)
    return fd
os.open = opened
lock = StoreLock.acquire(sys.argv[1])
threads[0].join()
os.wait()
lock.release()
"""
    with running(code, store) as process:
        assert line(process) == "[]"


@pytest.mark.parametrize("replaced", [False, True])
def test_deleted_file_lets_nobody_in(store: Path, *, replaced: bool) -> None:
    """Without LOCK, or with a new one of that name, the directory itself is still locked; the pid may be unknown."""
    lock = StoreLock.acquire(str(store))
    (store / LOCK_NAME).unlink()
    if replaced:
        (store / LOCK_NAME).touch()
    for _ in range(3):
        error = refused(store)
        assert error.pid is None
        assert "unknown process" in str(error)
    assert (store / LOCK_NAME).exists() == replaced
    lock.release()
    with owned(store):
        assert owner_in(store)[0] == str(os.getpid())


def test_renamed_directory_is_still_owned(store: Path) -> None:
    """The lock is on the directory, not on its name; the old name is free for another store."""
    with owned(store):
        moved = store.rename(store.with_name("moved"))
        assert refused(moved).pid == os.getpid()
        store.mkdir()
        StoreLock.acquire(str(store)).release()


def test_a_directory_is_removed_when_it_is_deleted_not_when_it_has_another_name(store: Path) -> None:
    with owned(store) as lock:
        moved = store.rename(store.with_name("moved"))
        store.mkdir()
        assert not lock.removed(bool)
        (moved / LOCK_NAME).unlink()
        assert lock.removed(bool)
    assert not lock.removed(bool), "it is not known of one that is released"
    with owned(store) as lock:
        (store / LOCK_NAME).unlink()
        assert not lock.removed(bool), "its path leads to it"
        assert lock.removed(lambda: True), "more is missing, as where something was made while it was being emptied"


def test_directory_replaced_during_acquire(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both locks are in the same directory, even if its name leads elsewhere in between."""
    moved = store.with_name("moved")

    def swap_after(fd: int, *, blocking: bool) -> bool:
        if not moved.exists():
            store.rename(moved)
            store.mkdir()
        return lock_descriptor(fd, blocking=blocking)

    monkeypatch.setattr(lock_module, "lock_descriptor", swap_after)
    with owned(store):
        assert owner_in(moved)[0] == str(os.getpid())
        assert list(store.iterdir()) == []


def test_file_lock_alone_refuses(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where directories cannot be locked, LOCK still keeps a second owner out."""
    real = lock_descriptor

    def only_files(fd: int, *, blocking: bool) -> bool:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, "no directory locks here")
        return real(fd, blocking=blocking)

    monkeypatch.setattr(lock_module, "lock_descriptor", only_files)
    with owned(store):
        assert refused(store).pid == os.getpid()
        assert owner_in(store)[0] == str(os.getpid())
        assert not is_locked(str(store))  # which has to be tried then
    StoreLock.acquire(str(store)).release()


def test_whether_it_is_owned_is_seen_without_owning_it(store: Path) -> None:
    assert not is_locked(str(store))
    with owned(store):
        assert is_locked(str(store))
    assert not is_locked(str(store))
    with pytest.raises(StorageError):
        is_locked(str(store / "missing"))


@pytest.mark.parametrize("step", ["file", "directory"])
def test_locks_that_do_not_work_are_an_error(store: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A file system without locks, or out of them, is not taken for an owned store, nor for a free one."""
    real = lock_descriptor

    def broken(fd: int, *, blocking: bool) -> bool:
        if stat.S_ISDIR(os.fstat(fd).st_mode) == (step == "directory"):
            raise OSError(errno.ENOLCK, "No locks available")
        return real(fd, blocking=blocking)

    monkeypatch.setattr(lock_module, "lock_descriptor", broken)
    with pytest.raises(StorageError) as caught:
        StoreLock.acquire(str(store))
    assert not isinstance(caught.value, StoreLockedError)
    assert caught.value.errno == errno.ENOLCK
    monkeypatch.undo()
    StoreLock.acquire(str(store)).release()


def test_who_needs_a_directory_for_a_moment_takes_turns(store: Path) -> None:
    before, waits, after = list(store.iterdir()), threading.Event(), list[str]()

    def another() -> None:
        waits.set()
        with in_turn(str(store)):
            after.append("the other")

    with in_turn(str(store)):
        assert is_locked(str(store))
        other = threading.Thread(target=another)
        other.start()
        waits.wait()
        after.append("the first")
    other.join()
    assert after == ["the first", "the other"]
    with pytest.raises(KeyError), in_turn(str(store)):
        raise KeyError
    assert not is_locked(str(store))
    assert list(store.iterdir()) == before
    with pytest.raises(StorageError), in_turn(str(store / "missing")):
        pytest.fail("there is no such directory")


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK])
def test_where_a_directory_cannot_be_locked_nobody_waits(
    store: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int, *, blocking: bool) -> bool:
        raise OSError(number, f"no locks here, {blocking=}")

    monkeypatch.setattr(lock_module, "lock_descriptor", broken)
    with in_turn(str(store)), in_turn(str(store)):
        pass


def link_to_victim(lock: Path, victim: Path) -> None:
    """Plant a symbolic link."""
    lock.symlink_to(victim)


def hard_link_to_victim(lock: Path, victim: Path) -> None:
    """Plant a second name of a file."""
    lock.hardlink_to(victim)


def dangling_link(lock: Path, victim: Path) -> None:
    """Plant a symbolic link to what does not exist."""
    lock.symlink_to(victim.with_name("created"))


def directory_instead(lock: Path, victim: Path) -> None:  # noqa: ARG001 - one signature for all
    """Plant a directory."""
    lock.mkdir()


def fifo_instead(lock: Path, victim: Path) -> None:  # noqa: ARG001 - one signature for all
    """Plant a pipe, which a plain open would wait for."""
    os.mkfifo(lock)


def not_there_yet(*_: object, **__: object) -> os.stat_result:
    """Look in vain, as happens when the plant comes a moment later."""
    raise FileNotFoundError(errno.ENOENT, "No such file or directory")


PLANTS = [link_to_victim, hard_link_to_victim, dangling_link, directory_instead, fifo_instead]


@pytest.mark.parametrize("look", [True, False], ids=["before", "after-the-look"])
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_lock_is_not_used(
    store: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None], *, look: bool
) -> None:
    """What is no plain file is refused by name, and what it points to is neither written, truncated nor created."""
    victim = store.parent / "victim"
    victim.write_text("precious", encoding="utf-8")
    victim.chmod(0o644)
    plant(store / LOCK_NAME, victim)
    if not look:
        monkeypatch.setattr(os, "stat", not_there_yet)
    with pytest.raises(StorageError) as caught:
        StoreLock.acquire(str(store))
    monkeypatch.undo()
    if look:
        assert isinstance(caught.value, NotAStoreError)
    assert not isinstance(caught.value, StoreLockedError)
    assert caught.value.path == str(store / LOCK_NAME)
    assert victim.read_text(encoding="utf-8") == "precious"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644
    assert sorted(path.name for path in store.parent.iterdir()) == ["store", "victim"]
    (shutil.rmtree if plant is directory_instead else os.unlink)(store / LOCK_NAME)
    StoreLock.acquire(str(store)).release()


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_lock_is_not_read_for_the_pid(store: Path, plant: Callable[[Path, Path], None]) -> None:
    """A refused contender neither follows nor waits for what replaced the owner's file."""
    victim = store.parent / "victim"
    victim.write_text("secret 4242\n", encoding="utf-8")
    with owned(store):
        (store / LOCK_NAME).unlink()
        plant(store / LOCK_NAME, victim)
        assert refused(store).pid is None


@pytest.mark.parametrize(
    "content", [b"", b" ", b" \n", b" x\nhost\n", b" -5\n", b"\0" * 4096, b" " + b"9" * 2000, b"\xff"]
)
def test_damaged_file_neither_blocks_nor_confuses(store: Path, content: bytes) -> None:
    """Any content is fine to take over, and read as an unknown owner when someone else wrote it."""
    (store / LOCK_NAME).write_bytes(content)
    with owned(store):
        assert owner_in(store) == [str(os.getpid()), socket.gethostname()]
        (store / LOCK_NAME).write_bytes(content)
        assert refused(store).pid is None


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_mode_does_not_depend_on_umask(store: Path, umask: int) -> None:
    """LOCK is the owner's alone."""
    before = os.umask(umask)
    try:
        StoreLock.acquire(str(store)).release()
    finally:
        os.umask(before)
    assert stat.S_IMODE((store / LOCK_NAME).stat().st_mode) == 0o600


def test_loose_mode_is_tightened(store: Path) -> None:
    """A file copied with another mode is corrected."""
    (store / LOCK_NAME).touch()
    (store / LOCK_NAME).chmod(0o666)
    StoreLock.acquire(str(store)).release()
    assert stat.S_IMODE((store / LOCK_NAME).stat().st_mode) == 0o600


@ONLY_LINUX
def test_no_descriptor_leaks(store: Path) -> None:
    """Neither taking and releasing nor being refused, by an owner or by the system, costs a descriptor."""
    before = open_descriptors()
    for _ in range(1000):
        StoreLock.acquire(str(store)).release()
    assert open_descriptors() == before
    with owned(store):
        held = open_descriptors()
        for _ in range(1000):
            refused(store)
        assert open_descriptors() == held
    (store / LOCK_NAME).unlink()
    (store / LOCK_NAME).mkdir()
    for _ in range(1000):
        with suppress(NotAStoreError):
            StoreLock.acquire(str(store))
    assert open_descriptors() == before


@ONLY_LINUX
@pytest.mark.parametrize("spare", [0, 1])
def test_no_descriptors_left(store: Path, spare: int) -> None:
    """Without a descriptor for the directory, or for the file after it, the error is typed and nothing stays locked."""
    before = open_descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + spare, limits[1]))
    try:
        with pytest.raises(StorageError) as caught:
            StoreLock.acquire(str(store))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE
    assert caught.value.path == str(store / LOCK_NAME if spare else store)
    assert open_descriptors() == before
    StoreLock.acquire(str(store)).release()


@pytest.mark.parametrize("there", [False, True], ids=["no-file", "unwritable-file"])
def test_no_permission(store: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    """A directory or a file that may not be written is said to be so, and by its path."""
    if there:
        (store / LOCK_NAME).touch()
        (store / LOCK_NAME).chmod(0o400)
    store.chmod(0o555)
    # "." needs no permission on the directories above, which pytest gives to nobody else.
    monkeypatch.chdir(store)
    with unprivileged(), pytest.raises(ReadOnlyError) as caught:
        StoreLock.acquire(".")
    store.chmod(0o700)
    assert caught.value.errno == errno.EACCES
    assert caught.value.path == os.path.join(".", LOCK_NAME)
    assert isinstance(caught.value.__cause__, OSError)


def test_no_directory(store: Path) -> None:
    """A missing directory is not made, and a file is not taken for one."""
    (store / "file").touch()
    for path, number in ((store / "missing", errno.ENOENT), (store / "file", errno.ENOTDIR)):
        with pytest.raises(StorageError) as caught:
            StoreLock.acquire(str(path))
        assert (caught.value.path, caught.value.errno) == (str(path), number)
    assert [path.name for path in store.iterdir()] == ["file"]


def test_full_disk_does_not_keep_the_owner_out(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the pid the store can be opened; no stale pid is left standing for the new owner."""
    (store / LOCK_NAME).write_text(" 4242\nsomewhere\n", encoding="utf-8")

    def full(fd: int, data: bytes) -> int:  # noqa: ARG001 - the signature of os.write
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with owned(store):
        assert refused(store).pid is None


def test_failed_write_releases(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other failure to write the pid is an error, and leaves the store free."""

    def broken(fd: int, data: bytes) -> int:  # noqa: ARG001 - the signature of os.write
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(StorageError) as caught:
        StoreLock.acquire(str(store))
    assert (caught.value.path, caught.value.errno) == (str(store / LOCK_NAME), errno.EIO)
    monkeypatch.undo()
    StoreLock.acquire(str(store)).release()


def test_forgotten_lock_is_released_with_a_warning(store: Path) -> None:
    """Garbage collection gives the store back."""
    cycle: list[object] = [StoreLock.acquire(str(store))]
    cycle.append(cycle)
    del cycle
    with pytest.warns(ResourceWarning, match="never released"):
        gc.collect()
    StoreLock.acquire(str(store)).release()


def test_nothing_else_warns(store: Path) -> None:
    """Import, both outcomes and the end of the interpreter are silent when every warning is an error."""
    code = """
import sys
from aiodq.errors import StoreLockedError
from aiodq.storage.io.lock import StoreLock
lock = StoreLock.acquire(sys.argv[1])
try:
    StoreLock.acquire(sys.argv[1])
except StoreLockedError:
    lock.release()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(store)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- looking who the owner is


@pytest.mark.parametrize("shown", [True, False])
def test_the_holder_is_told_without_a_lock_of_one_s_own(
    store: Path, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shown:  # as where the file system gives its files other numbers there
        monkeypatch.setattr(lock_module, "_shown_holder", lambda _: None)
    assert lock_holder(str(store)) is None
    with running(OWNER, store) as owner:
        assert line(owner) == "owned"
        assert lock_holder(str(store)) == LockHolder(owner.pid)
    assert lock_holder(str(store)) is None
    mine = StoreLock.acquire(str(store))
    assert lock_holder(str(store)) == LockHolder(os.getpid())
    mine.release()
    (store / LOCK_NAME).write_text(f" {os.getpid()}\n")  # as of one that was killed, whose number another has by now
    assert lock_holder(str(store)) is None
    StoreLock.acquire(str(store)).release()


def test_the_holder_of_what_is_not_there_is_an_error_of_ours(store: Path) -> None:
    with pytest.raises(StorageError):
        lock_holder(str(store / "none"))


@ONLY_LINUX
def test_a_holder_in_another_container_is_told_with_its_host(store: Path) -> None:
    program = "import sys; from aiodq.storage.io.lock import lock_holder; print(lock_holder(sys.argv[1]))"
    look = in_a_container([sys.executable, "-c", program, str(store)], sees_others=False)

    def told() -> str:
        return subprocess.run(look, capture_output=True, text=True, check=True, env=environment()).stdout.strip()

    with running(OWNER, store) as owner:
        assert line(owner) == "owned"
        assert told() == f"process {owner.pid} on {socket.gethostname()}"
        owner.kill()
        owner.wait()
        assert told() == "None"
