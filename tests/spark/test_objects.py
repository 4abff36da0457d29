"""Segments in object storage: shipped as they are, and read as the store they come from."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sys
from dataclasses import replace
from functools import partialmethod
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

import aiodq
from aiodq.spark import pipelines
from aiodq.spark.objects import AnyFileSystem, find_objects
from aiodq.spark.options import read_options, stream_options, write_options
from aiodq.spark.pipelines.ship import MANIFEST, ShipSummary, ship
from aiodq.spark.planning import snapshot
from aiodq.spark.stream.streaming import StreamReader
from aiodq.spark.visible import store_uuid
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.state.holds import Hold, read_hold, release_hold
from aiodq.storage.state.json_file import encode_checked
from aiodq.storage.state.store_identity import STORE_FILE
from aiodq.storage.state.topic.topic_meta import describe, save_meta
from tests.cli.support import aiodq as run
from tests.cli.support import ok
from tests.spark.support import KEEP, deleted, fill, read, scanned
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiodq.storage.io.filesystem import FileSystem


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    await fill(tmp_path / "store", segment_bytes=2000)
    await fill(tmp_path / "store", "other", rounds=30, segment_bytes=2000)
    return tmp_path / "store"


@pytest.fixture
def bucket() -> str:
    return f"memory://{uuid4()}/lake"


def sealed(store: Path, topic: str = "orders") -> list[dict[str, Any]]:
    """Return the rows that are in sealed segments: all but those of the last one."""
    last = int(segments(store / topic)[-1].stem)
    return [row for row in scanned(store, topic) if row["offset"] < last]


class Far(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Has the machine in its URLs and not in its paths, as that of SFTP."""

    protocol = "far"

    def __init__(self, *, machine: str, **more: Any) -> None:
        super().__init__(**more)
        assert machine == "me@machine"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(
            LocalFileSystem._strip_protocol(f"/{path.partition('://')[2].partition('/')[2]}" if "://" in path else path)
        )

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"machine": path.partition("://")[2].partition("/")[0]}


class Remembering(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Keeps its listings, unless it is told not to, as those of buckets do."""

    protocol = "remembering"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("remembering:/")))

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:  # noqa: FBT002 - fsspec's
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **more)
        found = self.dircache[path] if path in self.dircache else super().ls(path, detail=True, **more)
        return list(found) if detail else [each["name"] for each in found]


class Bucketed(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Has paths that begin with the name of a bucket, as that of S3."""

    protocol = "bucketed"
    root_marker = ""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("bucketed://").rstrip("/")


def test_what_comes_while_a_process_lives_is_listed() -> None:
    fsspec.register_implementation("remembering", Remembering, clobber=True)
    place = str(uuid4())
    for count in (1, 2):
        fsspec.filesystem("memory").pipe_file(f"/{place}/{count}", b"x")
        assert AnyFileSystem().listdir(f"remembering:///{place}") == [str(each + 1) for each in range(count)]


def test_a_listing_names_only_what_lies_in_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of some buckets name the place, too, and directories with a slash behind them."""
    monkeypatch.setattr(MemoryFileSystem, "ls", lambda *_, **__: ["/lake", "/lake/", "/lake/b/", "/lake/a", "/lake/b"])
    assert AnyFileSystem().listdir("memory://lake") == ["a", "b"]


def test_what_lies_below_a_file_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise NotADirectoryError("/lake/file/below")

    monkeypatch.setattr(MemoryFileSystem, "info", failing)
    assert not AnyFileSystem().exists("memory://lake/file/below")


def test_stores_in_a_bucket_are_named_by_a_pattern(store: Path, bucket: str) -> None:
    for name in ("a", "b", "other", "a?", "[b]"):
        ship(store, f"{bucket}/{name}", topics=["orders"])
    rows = sealed(store)
    for name in ("a", "a?", "[b]"):
        assert read(f"{bucket}/{name}") == rows, "what has that very name is meant"
    assert sorted(row["offset"] for row in read(f"{bucket}/?")) == sorted(row["offset"] for row in rows * 2)
    assert len(read(f"{bucket}/*")) == len(rows) * 5
    assert read_options({"path": f"{bucket}/o*r"}).stores == (f"{bucket}/other",), "it is spelled as the pattern is"
    with pytest.raises(aiodq.InvalidOptionError, match="no store is found under path"):
        read(f"{bucket}/c*")
    with pytest.raises(aiodq.StorageError, match="Protocol not known: nowhere"):
        read("nowhere://lake/*")


@pytest.mark.parametrize("url", ["far://me@machine", "simplecache::far://me@machine"])
def test_what_a_pattern_matches_is_on_the_machine_that_the_pattern_names(store: Path, url: str) -> None:
    fsspec.register_implementation("far", Far, clobber=True)
    lake = store.parent / "lake"
    for name in ("a", "b"):
        shutil.copytree(store, lake / name)
    stores = read_options({"path": f"{url}{lake}/?/"}).stores
    assert stores == (f"{url}{lake}/a", f"{url}{lake}/b")
    assert AnyFileSystem().is_directory(stores[0])


def test_a_bucket_that_is_not_there_is_not_made(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    def making(_: object, place: str, **__: object) -> None:
        raise AssertionError(f"{place} is made")

    fsspec.register_implementation("bucketed", Bucketed, clobber=True)
    monkeypatch.setattr(Bucketed, "makedirs", making)
    ship(store, f"bucketed://{uuid4()}/shop")
    monkeypatch.setattr(Bucketed, "pipe_file", failing)
    with pytest.raises(aiodq.StoreNotFoundError, match="The specified bucket does not exist"):
        ship(store, f"bucketed://{uuid4()}/shop")


def test_what_is_longer_than_what_is_to_be_shipped_is_somebody_else_s(store: Path, bucket: str) -> None:
    path = segments(store / "orders")[0]
    fs, place = find_objects(f"{bucket}/orders/{path.name}")
    fs.pipe_file(place, path.read_bytes() + b"x")
    with pytest.raises(aiodq.InvalidOptionError, match="something else"):
        ship(store, bucket)


async def test_what_is_missing_right_behind_what_was_shipped_is_no_deletion(store: Path, bucket: str) -> None:
    """Its owner deletes what comes first, and says so: what is missing without a word is damage, also with lossy."""
    ship(store, bucket, topics=["orders"])
    last = segments(store / "orders")[-1]
    await fill(store, segment_bytes=2000)
    last.unlink()
    for lossy in (False, True):
        with pytest.raises(aiodq.CorruptionError, match="are missing"):
            ship(store, bucket, topics=["orders"], lossy=lossy)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (FileNotFoundError("x"), errno.ENOENT),
        (NotADirectoryError("x"), errno.ENOTDIR),
        (PermissionError("x"), errno.EACCES),
        (FileExistsError("x"), errno.EEXIST),
        (OSError("x"), errno.EIO),
        (OSError(errno.ENOSPC, "x"), errno.ENOSPC),
        (RuntimeError("x"), errno.EIO),
    ],
    ids=repr,
)
def test_errors_have_the_numbers_of_a_system_s(error: Exception, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "ls", failing)
    with pytest.raises(OSError, match="x") as caught:
        AnyFileSystem().listdir("memory://lake")
    assert caught.value.errno == number


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("bucketed://lake//shop", r"has two slashes after 'lake': write bucketed://lake/shop$"),
        ("bucketed://lake///a//b", r"has two slashes after 'lake': write bucketed://lake/a//b$"),
    ],
)
def test_a_place_in_a_bucket_that_cannot_be_listed_is_refused(store: Path, url: str, told: str) -> None:
    """What was shipped there could not be read, nor shipped again."""
    fsspec.register_implementation("bucketed", Bucketed, clobber=True)
    for job in (lambda: ship(store, url), lambda: read(url), lambda: read(f"{url}*")):
        with pytest.raises(aiodq.InvalidOptionError, match=told.replace("$", "")):
            job()
    with pytest.raises(aiodq.InvalidOptionError, match=told):
        find_objects(url)
    assert find_objects("bucketed://lake/a//b/")[1] == "lake/a//b"
    assert find_objects("bucketed://lake/")[1] == "lake"
    assert find_objects("memory://lake//shop")[1] == "/lake//shop"


class WholeUrls(MemoryFileSystem):  # type: ignore[misc]  # as above
    """Has paths that are whole URLs, as that of HTTP."""

    protocol = "whole"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path


def test_where_paths_are_whole_urls_their_slashes_are_no_mistake() -> None:
    fsspec.register_implementation("whole", WholeUrls, clobber=True)
    assert find_objects("whole://host/shop")[1] == "whole://host/shop"


@pytest.mark.parametrize("bucket", ["*", "la?e"])
def test_a_pattern_of_buckets_is_refused(bucket: str) -> None:
    fsspec.register_implementation("bucketed", Bucketed, clobber=True)
    with pytest.raises(aiodq.InvalidOptionError, match=r"has a pattern in the place of the bucket, .*: name the b"):
        read_options({"path": f"bucketed://{bucket}/shop"})


@pytest.mark.parametrize("error", [RuntimeError("who are you?"), OSError(errno.EIO, "who are you?")], ids=repr)
def test_what_object_storage_says_of_itself_is_told(
    store: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no device, which is to be checked."""

    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(MemoryFileSystem, "info", failing)
    with pytest.raises(aiodq.StorageError, match=f"the system refused: {os.strerror(errno.EIO)}: who are you"):
        ship(store, "memory://lake")


def test_what_is_no_segment_is_read_in_parts_and_is_no_directory(bucket: str) -> None:
    fs, place = find_objects(f"{bucket}/notes")
    fs.pipe_file(place, b"0123456789")
    file = AnyFileSystem().open(f"{bucket}/notes")
    assert [file.read_at(4, 3), file.read_at(4, 8), file.read_at(4, 10)] == [b"3456", b"89", b""]
    assert not AnyFileSystem().is_directory(f"{bucket}/notes")
    assert AnyFileSystem().is_directory(bucket)


def test_of_a_segment_only_what_is_asked_for_travels(store: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(store, bucket)
    path = segments(store / "orders")[0]
    data, fetch, asked = path.read_bytes(), MemoryFileSystem.cat_file, list[tuple[Any, Any]]()

    def watched(self: Any, place: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        asked.append((start, end))
        return bytes(fetch(self, place, start=start, end=end, **more))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", watched)
    file = AnyFileSystem().open(f"{bucket}/orders/{path.name}")
    assert file.size() == len(data)
    assert file.read_at(16, 8) == data[8:24]
    assert file.read_at(100, len(data) - 4) == data[-4:]
    # Servers answer an error to a range that begins where the object ends.
    assert [file.read_at(1, len(data) + beyond) for beyond in (0, 5)] == [b"", b""]
    assert asked == [(8, 24), (len(data) - 4, len(data))]


def test_what_is_shipped_is_read_as_the_store_is(store: Path, bucket: str) -> None:
    done = ship(store, bucket)
    rows = sealed(store) + sealed(store, "other")
    assert (done.target, done.rows) == (bucket, len(rows))
    assert done.segments == len(segments(store / "orders")) + len(segments(store / "other")) - 2 > 4
    assert read(bucket, splitBytes="1k") == rows
    assert read(bucket, topic="other", startingOffsets="7", endingOffsets="9") == sealed(store, "other")[7:9]
    assert read(f"{bucket}, {store}", topic="other") == sealed(store, "other") + scanned(store, "other")
    for path in segments(store / "orders")[:-1]:
        assert fsspec.open(f"{bucket}/orders/{path.name}").open().read() == path.read_bytes()


async def test_only_what_is_new_is_shipped(store: Path, bucket: str) -> None:
    ship(store, bucket, topics=["orders"])
    assert ship(store, bucket, topics=["orders"]).segments == 0
    await fill(store, rounds=20, segment_bytes=2000)
    done = ship(store, bucket, topics=["or*"])
    assert 0 < done.rows < len(sealed(store))
    assert read(bucket) == sealed(store)
    fs, path = find_objects(f"{bucket}/orders/{MANIFEST}")
    manifest = json.loads(fs.cat_file(path))["manifest"]
    assert len(manifest["segments"]) == len(segments(store / "orders")) - 1
    assert manifest["store"] == str(store_uuid(OsFileSystem(), str(store)))


async def test_an_archive_from_before_stores_said_which_they_are_goes_on(store: Path, bucket: str) -> None:
    (store / STORE_FILE).unlink()
    assert ship(store, bucket).segments
    assert "store" not in manifest_of(bucket, "orders")
    await fill(store, rounds=20, segment_bytes=2000)
    assert ship(store, bucket, topics=["orders"]).segments
    assert manifest_of(bucket, "orders")["store"] == str(store_uuid(OsFileSystem(), str(store)))
    assert read(bucket, topic="orders") == sealed(store)
    assert store_uuid(AnyFileSystem(), bucket) is None


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("kept", [True, False])
def test_an_object_that_is_gone_is_shipped_again_or_missed(store: Path, bucket: str, number: int, kept: bool) -> None:
    ship(store, bucket, topics=["orders"])
    rows = sealed(store)
    shipped = manifest_of(bucket, "orders")["segments"]
    source = [path for path in segments(store / "orders") if path.name in shipped][number]
    fs, place = find_objects(f"{bucket}/orders/{source.name}")
    fs.rm_file(place)
    if not number:
        # The owner of a bucket may let its oldest objects expire, as retention does in a store.
        assert ship(store, bucket, topics=["orders"]).segments == 0
        assert 0 < len(read(bucket)) < len(rows)
        return
    if kept:
        assert ship(store, bucket, topics=["orders"]).segments == 1
        assert read(bucket) == rows
        return
    data = bytearray(source.read_bytes())
    data[100] ^= 1
    source.write_bytes(data)
    with pytest.raises(aiodq.CorruptionError, match=r"it was shipped, and is there no more.*lossy goes on") as caught:
        ship(store, bucket, topics=["orders"])
    assert caught.value.path == f"{bucket}/orders/{source.name}"
    assert ship(store, bucket, topics=["orders"], lossy=True).segments == 0


def test_a_manifest_without_segments_is_damage(store: Path, bucket: str) -> None:
    ship(store, bucket)
    fs, place = find_objects(f"{bucket}/orders/{MANIFEST}")
    fs.pipe_file(place, encode_checked("manifest", 1, {"topic": "x"}))
    with pytest.raises(aiodq.CorruptionError, match="the manifest cannot be read"):
        ship(store, bucket)


def test_cut_short_it_goes_on(store: Path, bucket: str) -> None:
    ship(store, bucket)
    fs, path = find_objects(f"{bucket}/orders")
    for name in (MANIFEST, "topic.json", segments(store / "orders")[1].name):
        fs.rm_file(f"{path}/{name}")
    ship(store, bucket)
    assert read(bucket, topic="orders") == sealed(store)


@pytest.mark.parametrize("name", ["topic.json", MANIFEST])
async def test_what_is_replaced_while_it_is_read_is_read_whole(
    store: Path, bucket: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run ships more, or the same one while somebody reads the place."""
    ship(store, bucket)
    fs, path = find_objects(f"{bucket}/orders/{name}")
    longer = b" " * 50 + fs.cat_file(path)
    for request in ("size", "cat_file"):

        def replacing(self: MemoryFileSystem, asked: str, *rest: Any, before: Any, **named: Any) -> Any:
            found = before(self, asked, *rest, **named)
            if asked.endswith(f"orders/{name}"):
                self.pipe_file(asked, longer)
            return found

        before = getattr(MemoryFileSystem, request)
        monkeypatch.setattr(MemoryFileSystem, request, partialmethod(replacing, before=before))
    await fill(store, rounds=20, segment_bytes=2000)
    assert snapshot(AnyFileSystem(), bucket, "orders").described
    assert ship(store, bucket).segments


@pytest.mark.parametrize("part", [0, 100])
def test_in_a_bucket_what_is_no_whole_segment_is_somebody_else_s(store: Path, bucket: str, part: int) -> None:
    first = segments(store / "orders")[0]
    fs, path = find_objects(f"{bucket}/orders/{first.name}")
    fs.pipe_file(path, first.read_bytes()[:part])
    with pytest.raises(aiodq.InvalidOptionError, match="something else"):
        ship(store, bucket)
    assert fs.cat_file(path) == first.read_bytes()[:part]


@pytest.mark.parametrize("part", [0, 100])
def test_what_a_run_that_was_killed_has_begun_to_write_is_made_whole(store: Path, tmp_path: Path, part: int) -> None:
    target, first = f"file://{tmp_path}/lake", segments(store / "orders")[0]
    begun = tmp_path / "lake" / "orders" / first.name
    begun.parent.mkdir(parents=True)
    begun.write_bytes(first.read_bytes()[:part])
    ship(store, target)
    assert begun.read_bytes() == first.read_bytes()
    assert read(target, topic="orders") == sealed(store)


@pytest.mark.parametrize("name", [MANIFEST, "topic.json"])
async def test_what_says_what_was_shipped_is_whole_whenever_a_run_is_killed(
    store: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to who reads the place meanwhile."""
    target, whole = f"file://{tmp_path}/lake", LocalFileSystem.pipe_file

    class Killed(BaseException):
        pass

    def half(self: LocalFileSystem, path: str, value: bytes, **rest: Any) -> None:
        here = name in path
        whole(self, path, value[: len(value) // 2] if here else value, **rest)
        if here:
            raise Killed

    ship(store, target)
    before = read(target)
    await fill(store, segment_bytes=2000)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "pipe_file", half)
        with pytest.raises(Killed):
            ship(store, target)
    assert read(target, topic="other") == [row for row in before if row["topic"] == "other"]
    assert read(target, topic="orders", endingOffsets="5") == before[:5]
    assert ship(store, target).segments
    assert read(target, topic="orders") == sealed(store)


def test_an_owner_knows_of_a_new_hold_before_the_store_is_looked_at(
    store: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Path] = []

    def wait() -> None:
        assert read_hold(OsFileSystem(), str(store), "lake") == Hold({}, None)
        waited.append(segments(store / "other")[0])
        segments(store / "other")[0].unlink()

    monkeypatch.setattr(sys.modules[ship.__module__], "wait_until_known", wait)
    ship(store, bucket, hold="lake")
    ship(store, bucket, hold="lake")
    (deleted,) = waited
    assert deleted.name not in manifest_of(bucket, "other")["segments"]
    assert manifest_of(bucket, "other")["segments"]


@pytest.mark.parametrize("name", [MANIFEST, "topic.json"])
def test_what_cannot_be_said_of_what_was_shipped_is_an_error(
    store: Path, bucket: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe_file = MemoryFileSystem.pipe_file

    def failing(self: MemoryFileSystem, path: str, value: bytes, **rest: Any) -> None:
        if path.endswith(name):
            raise ConnectionResetError
        pipe_file(self, path, value, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", failing)
        with pytest.raises(aiodq.StorageError) as caught:
            ship(store, bucket, topics=["orders"], hold="lake")
    assert caught.value.path == f"{bucket}/orders/{name}"
    held = read_hold(OsFileSystem(), str(store), "lake")
    assert held == Hold({}, ("orders",)), "what is not noted is not let go"
    assert ship(store, bucket, topics=["orders"], hold="lake").segments
    assert read(bucket) == sealed(store)


@pytest.mark.parametrize("topics", [None, ["ord*"]])
def test_a_hold_that_is_released_meanwhile_is_made_again(
    store: Path, bucket: str, topics: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipping, fs = sys.modules[ship.__module__], OsFileSystem()
    make = shipping._make

    def releasing(url: str, data: bytes) -> None:
        release_hold(fs, str(store), "lake")
        make(url, data)

    monkeypatch.setattr(shipping, "_make", releasing)
    ship(store, bucket, topics=topics, hold="lake")
    held = read_hold(fs, str(store), "lake")
    assert held is not None
    assert held.patterns == (None if topics is None else ("ord*",))
    assert (
        held.offsets.items()
        >= {"orders" if topics else "other": len(sealed(store, "orders" if topics else "other"))}.items()
    )


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError("slow"), RuntimeError("not the system's")])
async def test_a_manifest_that_an_error_hides_is_not_taken_for_none(
    store: Path, bucket: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(store, bucket)
    manifest = f"{bucket}/orders/{MANIFEST}"
    before = fsspec.open(manifest).open().read()
    info = MemoryFileSystem.info

    def failing(self: MemoryFileSystem, path: str, **rest: Any) -> Any:
        if path.endswith(MANIFEST):
            raise error
        return info(self, path, **rest)

    await fill(store, segment_bytes=2000)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "info", failing)
        with pytest.raises(aiodq.StorageError) as caught:
            ship(store, bucket)
    assert caught.value.path == manifest
    assert fsspec.open(manifest).open().read() == before
    ship(store, bucket)
    assert read(bucket, topic="orders") == sealed(store)


def test_what_cannot_be_read_is_not_shipped_to(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(aiodq.InvalidOptionError, match="names a machine, 'lake'"):
        ship(store, "file://lake/shop")
    with pytest.raises(aiodq.InvalidOptionError, match="write s3://bucket/shop for a URL"):
        ship(store, "s3:/bucket/shop")
    with pytest.raises(aiodq.StorageError, match="Protocol not known: nosuch"):
        ship(store, "nosuch://bucket/shop")
    assert sorted(tmp_path.iterdir()) == before


def test_a_store_is_no_place_to_ship_to(store: Path, tmp_path: Path) -> None:
    """Its topics' descriptions would be replaced, which say where their channels are."""
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for place in (f"file://{store}", f"file://{store}/", str(store)):
        with pytest.raises(aiodq.InvalidOptionError, match="is a store: name a place of its own"):
            ship(store, place)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(aiodq.StoreNotFoundError, match="the directory is empty"):
        ship(tmp_path / "empty", "memory://bucket/empty", hold="lake")
    assert list((tmp_path / "empty").iterdir()) == []


def test_what_is_there_is_not_written_over(store: Path, bucket: str) -> None:
    fs, path = find_objects(f"{bucket}/orders/{segments(store / 'orders')[0].name}")
    fs.pipe_file(path, b"somebody's")
    with pytest.raises(aiodq.InvalidOptionError, match="something else"):
        ship(store, bucket)
    assert fs.cat_file(path) == b"somebody's"


async def test_another_topic_of_the_name_is_not_mixed_with_it(store: Path, tmp_path: Path, bucket: str) -> None:
    ship(store, bucket)
    await fill(tmp_path / "another", segment_bytes=2000)
    with pytest.raises(aiodq.InvalidOptionError, match="another topic of that name"):
        ship(tmp_path / "another", bucket)


async def test_what_was_deleted_before_it_was_shipped_is_missed(tmp_path: Path, bucket: str) -> None:
    ends: list[int] = []
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(segment_bytes=1000)) as store:
        for _ in range(2):
            for _ in range(60):
                await store.topic("a").put(b"x" * 50)
            if not ends:
                ends.append(ship(tmp_path / "s", bucket).rows)
            else:
                await store.topic("a").purge()
                await deleted(store.topic("a"), tmp_path / "s" / "a")
                for _ in range(60):
                    await store.topic("a").put(b"x" * 50)
        with pytest.raises(aiodq.OffsetError, match=f"the messages {ends[0]} to 119 .* were deleted before"):
            ship(tmp_path / "s", bucket)
    assert len(read(bucket)) == ends[0], "what was shipped is there for good"


def manifest_of(bucket: str, topic: str) -> dict[str, Any]:
    fs, path = find_objects(f"{bucket}/{topic}/{MANIFEST}")
    return dict(json.loads(fs.cat_file(path))["manifest"])


async def put_each(topic: aiodq.Topic, count: int) -> None:
    for _ in range(count):
        await topic.put(b"x" * 50)


@pytest.mark.parametrize("hold", [None, "lake"])
async def test_past_what_a_purge_has_deleted_it_goes_on_where_it_is_told_to(
    tmp_path: Path, bucket: str, hold: str | None
) -> None:
    path = tmp_path / "s"
    async with aiodq.open(path, aiodq.StoreOptions(segment_bytes=1000, retention=KEEP)) as store:
        topic = store.topic("a")
        await put_each(topic, 60)
        end = ship(path, bucket, hold=hold).rows
        for times in (1, 2):
            await topic.purge()
            await deleted(topic, path / "a")
            begin = topic.begin_offset
            await put_each(topic, 60)
            rows = len(read(bucket))
            with pytest.raises(aiodq.OffsetError, match=f"messages {end} to {begin - 1} .* lossy goes on without them"):
                ship(path, bucket, hold=hold)
            done = ship(path, bucket, hold=hold, lossy=True)
            assert (done.lost, done.rows) == (begin - end, len(read(bucket)) - rows), times
            end = begin + done.rows
            assert ship(path, bucket, hold=hold).lost == 0
            assert ship(path, bucket, hold=hold).segments == 0
        await put_each(topic, 60)
        assert ship(path, bucket, hold=hold).lost == 0
    offsets = [row["offset"] for row in read(bucket)]
    assert offsets[-1] + 1 == max(stop for _, _, stop in manifest_of(bucket, "a")["segments"].values())
    assert [row["offset"] for row in read(bucket, startingOffsets=str(begin))] == offsets[offsets.index(begin) :]
    if hold is not None:
        assert read_hold(OsFileSystem(), str(path), hold) == Hold({"a": offsets[-1] + 1}, None)


async def test_what_retention_has_deleted_in_the_middle_is_never_missed(tmp_path: Path, bucket: str) -> None:
    """The store notes it for as long as something is before it."""
    fs, path = OsFileSystem(), tmp_path / "s"

    async def put_more() -> None:
        async with aiodq.open(path, aiodq.StoreOptions(segment_bytes=1000, retention=KEEP)) as store:
            await put_each(store.topic("a"), 60)

    def note(**changes: Any) -> None:
        save_meta(fs, str(path / "a"), replace(describe(fs, str(path / "a"))[0], **changes))

    await put_more()
    first, second, third, *_ = segments(path / "a")
    gone = int(second.stem), int(third.stem)
    note(deleted=(gone,))
    second.unlink()
    ship(path, bucket)
    before = [row["offset"] for row in read(bucket)]
    note(deleted=(), begin=gone[1])
    first.unlink()
    await put_more()
    ship(path, bucket)
    after = [row["offset"] for row in read(bucket)]
    assert after[: len(before)] == before
    assert after == [offset for offset in range(after[-1] + 1) if not gone[0] <= offset < gone[1]]


@pytest.mark.parametrize("lossy", [False, True])
async def test_what_was_deleted_between_others_before_it_was_shipped_is_missed(
    tmp_path: Path, bucket: str, lossy: bool
) -> None:
    """Once every channel has settled all of a segment. What was deleted before the first run is nothing to miss."""
    path = tmp_path / "s"
    async with aiodq.open(path, aiodq.StoreOptions(segment_bytes=1000)) as store:
        topic = store.topic("a")
        work = topic.channel("work")

        async def leave_gap() -> tuple[int, int]:
            begin = topic.end_offset
            await put_each(topic, 60)
            there = [segment for segment in segments(path / "a") if int(segment.stem) >= begin]
            kept = {int(there[0].stem), topic.end_offset - 1}
            await work.ack_many([message for message in await work.get_many(60) if message.offset not in kept])
            while len(segments(path / "a")) > 2 + 2 * bool(begin):
                await asyncio.sleep(0.01)
            return int(there[1].stem), int(there[-1].stem)

        first = await leave_gap()
        assert ship(path, bucket).segments == 1, "the last one is not sealed yet"
        second = await leave_gap()
        await put_each(topic, 60)
        if not lossy:
            told = rf"the messages {second[0]} to {second[1] - 1} of .* were deleted before they were shipped"
            with pytest.raises(aiodq.OffsetError, match=told):
                ship(path, bucket)
        assert ship(path, bucket, lossy=True).lost == second[1] - second[0]
        await put_each(topic, 60)
        assert ship(path, bucket).lost == 0
    offsets = [row["offset"] for row in read(bucket)]
    assert set(offsets) == {*range(offsets[-1] + 1)}.difference(range(*first), range(*second))


@pytest.mark.parametrize("damage", ["missing", "checksum"])
async def test_what_is_missing_or_damaged_is_not_passed_by(store: Path, bucket: str, damage: str) -> None:
    ship(store, bucket)
    await fill(store, rounds=20, segment_bytes=2000)
    path = segments(store / "orders")[-3]
    if damage == "missing":
        path.unlink()
    else:
        flip(path, 0, 1)
    shipped = read(bucket)
    with pytest.raises(aiodq.CorruptionError, match="aiodq repair settles it, and the next run goes on"):
        ship(store, bucket, lossy=True)
    assert read(bucket) == shipped
    ok("repair", store)
    assert ship(store, bucket).segments
    assert read(bucket) == [*sealed(store), *sealed(store, "other")]


async def test_two_runs_at_once(store: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shipping = sys.modules[ship.__module__]
    make, further = shipping._make, list[str]()

    def late(url: str, data: bytes) -> None:
        if not further:
            further.append(url)
            asyncio.run(fill(store, rounds=20, segment_bytes=2000))
            ship(store, bucket)
        make(url, data)

    monkeypatch.setattr(shipping, "_make", late)
    await asyncio.to_thread(ship, store, bucket)
    assert sorted(manifest_of(bucket, "orders")["segments"]) == [path.name for path in segments(store / "orders")[:-1]]
    assert read(bucket, topic="orders") == sealed(store)


async def test_two_runs_that_write_a_manifest_at_once_do_so_in_turn(
    store: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the one wrote would be lost by what the other had read before."""
    shipping, locks = sys.modules[ship.__module__], sys.modules[StoreLock.__module__]
    manifest, lock = shipping._manifest, locks.lock_descriptor
    looks, others, got_so_far = 0, list[Thread](), Event()

    def further() -> None:
        asyncio.run(fill(store, rounds=20, segment_bytes=2000))
        ship(store, bucket)
        got_so_far.set()

    def slow(fs: Any, place: str) -> Any:
        nonlocal looks
        found = manifest(fs, place)
        looks += not others
        if looks == 2 and not others:
            others.append(Thread(target=further))
            others[0].start()
            got_so_far.wait()
        return found

    def locking(fd: int, *, blocking: bool) -> bool:
        if others and blocking:
            got_so_far.set()
        return bool(lock(fd, blocking=blocking))

    monkeypatch.setattr(shipping, "_manifest", slow)
    monkeypatch.setattr(locks, "lock_descriptor", locking)
    await asyncio.to_thread(ship, store, bucket, topics=["orders"])
    others[0].join()
    assert sorted(manifest_of(bucket, "orders")["segments"]) == [path.name for path in segments(store / "orders")[:-1]]
    assert read(bucket, topic="orders") == sealed(store)


@pytest.mark.parametrize("which", [0, 2])
async def test_what_its_owner_deletes_while_it_is_shipped_is_missed(
    store: Path, bucket: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never is an empty object made of it."""
    shipping = sys.modules[ship.__module__]
    rows, there, before = sealed(store), segments(store / "orders"), shipping.read_file
    begin = int(there[which + 1].stem)

    def deleting(fs: FileSystem, path: str, *limit: int) -> bytes | None:
        if path == str(there[which]) and there[which].exists():
            for segment in there[: which + 1]:
                segment.unlink()
            save_meta(
                OsFileSystem(), str(store / "orders"), replace(describe(fs, str(store / "orders"))[0], begin=begin)
            )
        found: bytes | None = before(fs, path, *limit)
        return found

    monkeypatch.setattr(shipping, "read_file", deleting)
    if which:
        with pytest.raises(
            aiodq.OffsetError, match=f"messages {there[which].stem.lstrip('0')} to {begin - 1} .* were del"
        ):
            ship(store, bucket, topics=["orders"])
    done = ship(store, bucket, topics=["orders"], lossy=True)
    kept = [row for row in rows if row["offset"] >= begin or row["offset"] < int(there[which].stem)]
    assert read(bucket, failOnDataLoss="false") == kept
    assert done.lost == (begin - int(there[which].stem) if which else 0)
    assert manifest_of(bucket, "orders")["segments"].keys() == {
        path.name for path in [*there[:which], *there[which + 1 : -1]]
    }


async def test_with_a_hold_nothing_is_deleted_before_it_is_shipped(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodq.engine.topic.retention.topic_retention._LOOK_EVERY", 0.0)
    fs = OsFileSystem()
    async with aiodq.open(tmp_path / "s", aiodq.StoreOptions(segment_bytes=1000)) as store:
        queue = store.queue("a")
        await queue.put(b"first")
        ship(tmp_path / "s", bucket, hold="lake")
        assert read_hold(fs, str(tmp_path / "s"), "lake") == Hold({"a": 0}, None)
        for _ in range(40):
            await queue.put(b"x" * 50)
        for message in await queue.get_many(41, linger=20):
            await message.ack()
        queue.topic._engine.retain_soon()
        await queue.sync()
        assert queue.begin_offset == 0
        done = ship(tmp_path / "s", bucket, hold="lake")
        assert read_hold(fs, str(tmp_path / "s"), "lake") == Hold({"a": done.rows}, None)
        while queue.begin_offset == 0:
            await queue.sync()
            queue.topic._engine.retain_soon()
        for _ in range(40):
            await queue.put(b"x" * 50)
        ship(tmp_path / "s", bucket, hold="lake")
    assert [row["offset"] for row in read(bucket)] == list(range(len(read(bucket))))
    assert len(read(bucket)) > done.rows


def test_a_stream_of_an_archive(store: Path, bucket: str) -> None:
    ship(store, bucket)
    reader = StreamReader(stream_options({"path": f"{bucket},{store}", "topic": "other"}))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["topics"] == {f"{bucket}/other": len(sealed(store, "other")), f"{store}/other": 150}
    rows = [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]
    assert rows == scanned(store, "other") + sealed(store, "other")


def test_mistakes(store: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(aiodq.StoreNotFoundError):
        read(f"{bucket}/nowhere")
    with pytest.raises(aiodq.InvalidOptionError, match="where a store is only read"):
        write_options({"path": bucket, "topic": "t"}, stream=False)
    with pytest.raises(aiodq.InvalidOptionError, match="a hold is kept in a store's directory"):
        stream_options({"path": bucket, "hold": "daily"})
    with pytest.raises(aiodq.StorageError, match="Protocol not known"):
        read("nothing-like-it://bucket/x")
    for nowhere in ("memory://", "memory:///"):
        with pytest.raises(aiodq.InvalidOptionError, match="names no place"):
            ship(store, nowhere)
    fs = AnyFileSystem()
    for wrong in (
        lambda: fs.open(f"{bucket}/x", create=True),
        lambda: fs.make_directory(bucket),
        lambda: fs.rename("/a", bucket),
        lambda: fs.remove(bucket),
        lambda: fs.remove_directory(bucket),
        lambda: fs.sync_directory(bucket),
        lambda: fs.lock(bucket),
    ):
        with pytest.raises(OSError, match="is read; only its owner"):
            wrong()
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(aiodq.MissingExtraError, match=r"aiodq\[objects\]"):
        ship(store, bucket)
    with pytest.raises(aiodq.MissingExtraError, match=r"aiodq\[objects\]"):
        read(bucket)


def test_what_a_kind_of_url_needs_besides_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # where another test has used it
    with pytest.raises(aiodq.MissingExtraError, match="s3fs"):
        find_objects("s3://bucket/x")


def test_the_command(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = f"file://{tmp_path}/lake"
    assert ok("spark", "archive", store, target, "--segments", "--topic", "orders").out.startswith(b"shipped ")
    assert read(target) == sealed(store)
    assert ok("spark", "archive", store, target, "--segments", "--topic", "orders", "--lossy").out.startswith(
        b"shipped 0 "
    )
    assert run("spark", "archive", store, target, "--segments", "--checkpoint", tmp_path).code != 0
    asked: list[dict[str, object]] = []

    def shipped(*_: str, **how: object) -> ShipSummary:
        asked.append(how)
        return ShipSummary("lake", 1, 5, 0, 1.0, lost=2)

    monkeypatch.setattr(pipelines, "ship", shipped)
    told = ok("spark", "archive", store, target, "--segments", "--hold", "lake", "--lossy").out
    assert told.endswith(b" to lake: 1.0 s, left out: 2 messages that were deleted before\n")
    assert asked == [{"topics": None, "hold": "lake", "lossy": True}]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_workers_read_an_archive_by_its_url(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    target = f"file://{tmp_path}/lake"
    ship(store, target)
    frame = spark.read.format("aiodq").option("topic", "orders").load(target)
    assert sorted(row["offset"] for row in frame.collect()) == [row["offset"] for row in sealed(store)]
