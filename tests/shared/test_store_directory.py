"""A store that is shared lies on a disk of this machine, and stays where it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

import aiodq
from aiodq.shared.connection.finding.store_directory import StoreDirectory, refuse_network
from aiodq.storage.io import mounts as system
from tests.shared.support import two


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of which the system says what the test writes into `mounts` beside it: `{}` is its device."""
    directory, mounts = tmp_path / "mounted", tmp_path / "mounts"
    directory.mkdir()
    monkeypatch.setattr(system, "_MOUNTS", str(mounts))
    return directory


def mount(directory: Path, kind: str, *, shared: bool = True) -> None:
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = [
        "22 27 0:99999 / /proc rw,relatime - proc proc rw",
        f"27 1 {number} / /a\\040place rw,relatime {'shared:7 master:1 ' if shared else ''}- {kind} server:/data rw",
        "41 31 0:99998 / /elsewhere rw - nfs server:/other rw",
    ]
    (directory.parent / "mounts").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "fuse.sshfs"])
@pytest.mark.parametrize("mode", ["shared", "client"])
async def test_a_file_system_of_a_network_is_refused_in_words(
    mounted: Path, kind: str, mode: Literal["shared", "client"]
) -> None:
    mount(mounted, kind, shared=kind < "g")
    for path in (mounted, mounted / "store" / "below"):
        with pytest.raises(aiodq.StorageError, match=rf"\({kind}\).*disk of this machine.*exclusive") as refused:
            await aiodq.open(path, mode=mode)
        assert refused.value.path == str(path)
        assert not refused.value.retriable
    assert list(mounted.iterdir()) == [], "nothing was made there"


async def test_who_has_a_store_alone_may_have_it_anywhere(mounted: Path) -> None:
    mount(mounted, "nfs4")
    async with aiodq.open(mounted / "s") as store:
        assert await store.queue("jobs").put(b"x") == 0


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "9p", "virtiofs", "fuse.ntfs-3g"])
def test_a_disk_of_this_machine_is_none(mounted: Path, kind: str) -> None:
    mount(mounted, kind)
    refuse_network(str(mounted / "s"))


@pytest.mark.parametrize("mounts", ["", "nonsense\n", "1 2\n\n - \n"], ids=["empty", "nonsense", "torn"])
def test_where_the_system_does_not_say_nothing_is_refused(mounted: Path, mounts: str) -> None:
    (mounted.parent / "mounts").write_text(mounts)
    refuse_network(str(mounted))
    (mounted.parent / "mounts").unlink()
    refuse_network(str(mounted))


def test_what_this_system_says_is_read(tmp_path: Path) -> None:
    """Of a file system in memory, as of a disk: whatever it is, it is none of a network."""
    refuse_network(str(tmp_path))
    refuse_network("/proc/self/fd")
    assert system.file_system_type(os.stat("/proc").st_dev) in {"proc", None}


def test_a_place_is_the_directory_and_not_its_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    here = StoreDirectory(str(path))
    here.check()
    with pytest.raises(aiodq.StoreNotFoundError):
        here.settle()
    path.mkdir()
    here.settle()
    here.check()
    path.rename(tmp_path / "t")
    for _ in range(2):
        with pytest.raises(aiodq.StoreNotFoundError, match="renamed"):
            here.check()
        path.mkdir(exist_ok=True)
    path.rmdir()
    (tmp_path / "t").rename(path)
    here.check()


async def test_an_error_is_told_though_the_directory_s_name_is_no_text(tmp_path: Path) -> None:
    async with two(path := Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))) as stores:
        (path / "jobs").touch()
        for store in stores:
            with pytest.raises(aiodq.StorageError, match="something lies there"):
                await store.topic("jobs").put(b"x")
