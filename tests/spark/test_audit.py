"""An audit finds in topics what `aiodq verify` finds, whatever was done to their files; most of it beside Spark."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import aiodq
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.spark.pipelines.audit import audit
from aiodq.spark.pipelines.ship import ship
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.offline.verify_segment import check_segment
from aiodq.storage.state.topic.topic_meta import TOPIC_FILE
from aiodq.storage.state.watermark import WATERMARK
from tests.spark.support import KEEP, fill, read
from tests.storage.logs import flip, overwrite, segments
from tests.storage.stores import data_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiodq.spark.pipelines.audit import AuditSummary, _Piece
    from aiodq.storage.io.filesystem import File

STORES = 8
"""How many of them a run damages."""


def audited(store: Path) -> AuditSummary:
    """Audit a store with its tasks done here."""

    def here(_: object, work: Sequence[Sequence[_Piece]], task: Callable[[Sequence[_Piece]], Any], __: str) -> Any:
        rows = [row for each in work for batch in task(each) for row in batch.to_pylist()]
        return SimpleNamespace(collect=lambda: rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(audit.__globals__, "spread", here)
        return audit(cast("Any", None), store)


def verified(store: Path) -> tuple[Counter[tuple[Any, ...]], int]:
    """Return the damage that a verification finds in topics' logs, and the number of messages."""
    report = verify_store(str(store), OsFileSystem())
    logs = (file for file in report.files if file.kind in {"topic", "watermark", "segment"})
    found = [one for file in logs for one in file.findings if one.severity == "damage"]
    return Counter((one.path, one.position, one.reason, one.first, one.stop) for one in found), report.records


def as_verified(done: AuditSummary) -> tuple[Counter[tuple[Any, ...]], int]:
    """Return what an audit found, likewise."""
    findings = ((one.path, one.position, one.reason, one.first, one.stop) for one in done.findings)
    return Counter(findings), done.records


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, which beside its owner may be gone since it was listed."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


async def made(store: Path, draw: random.Random) -> None:
    """Make a store of up to three topics; sometimes as it is after its owner was killed."""
    retention = draw.choice([KEEP, aiodq.Retention(consumed="delete")])
    options = aiodq.StoreOptions(segment_bytes=draw.choice([600, 1500, 4096]), retention=retention, sync="os")
    killed = draw.random() < 0.4
    async with aiodq.open(store, options) as opened:
        for name in "abc"[: draw.randint(1, 3)]:
            topic = opened.topic(name)
            channel = topic.channel("c", aiodq.ChannelOptions(start="earliest")) if draw.random() < 0.5 else None
            for _ in range(draw.randint(0, 30)):
                if draw.random() < 0.5:
                    await topic.put(draw.randbytes(draw.randint(0, 200)), tag=draw.choice([None, "red"]))
                else:
                    await topic.put_many([draw.randbytes(draw.randint(0, 300)) for _ in range(draw.randint(1, 6))])
            for _ in range(draw.randint(0, 15) if channel is not None and not channel.empty() else 0):
                if channel is not None and not channel.empty():
                    message = await channel.get()
                    message.ack_nowait()
        if killed:
            shutil.copytree(store, store.with_name("killed"), copy_function=_copy_if_there)
    if killed:
        shutil.rmtree(store)
        store.with_name("killed").rename(store)
        (store / "LOCK").unlink(missing_ok=True)


def damaged(store: Path, draw: random.Random) -> list[Any]:
    """Damage up to three of the files of topics; return what was done."""
    said: list[Any] = []
    for _ in range(draw.randint(1, 3)):
        whole = sorted(path for path in store.glob("[abc]/*.seg") if path.stat().st_size)
        if not whole:
            break
        other = sorted(path for path in store.glob("[abc]/*") if path.name in {TOPIC_FILE, WATERMARK})
        path = draw.choice(whole if draw.random() < 0.85 or not other else other)
        how = draw.choice(list(DAMAGES))
        said.append((how, str(path.relative_to(store)), DAMAGES[how](path, whole, draw)))
    return said


def _flip(path: Path, _: list[Path], draw: random.Random) -> int:
    at = draw.randrange(path.stat().st_size)
    flip(path, at, draw.randrange(8))
    return at


def _truncate(path: Path, _: list[Path], draw: random.Random) -> int:
    at = draw.choice([0, draw.randrange(path.stat().st_size)])
    os.truncate(path, at)
    return at


def _zeros(path: Path, _: list[Path], draw: random.Random) -> tuple[int, int]:
    data = path.read_bytes()
    at, size = draw.randrange(len(data)), draw.randint(1, 600)
    path.write_bytes((data[:at] + bytes(size) + data[at + size :])[: len(data)])
    return at, size


def _append(path: Path, _: list[Path], draw: random.Random) -> int:
    more = draw.choice([draw.randbytes(draw.randint(1, 100)), bytes(draw.randint(1, 5000))])
    path.write_bytes(path.read_bytes() + more)
    return len(more)


def _swap(path: Path, whole: list[Path], draw: random.Random) -> str:
    other = draw.choice(whole)
    mine, others = path.read_bytes(), other.read_bytes()
    path.write_bytes(others)
    other.write_bytes(mine)
    return str(other)


def _repeat(path: Path, whole: list[Path], draw: random.Random) -> str:
    """Put a copy beside it, or into another topic."""
    base = int(path.stem) + draw.randint(1, 5) if path.suffix == ".seg" else 0
    other = draw.choice([path.with_name(f"{base:020d}.seg"), draw.choice(whole).with_name(path.name)])
    if other != path:
        shutil.copy(path, other)
    return str(other)


DAMAGES: dict[str, Callable[[Path, list[Path], random.Random], Any]] = {
    "flip": _flip,
    "truncate": _truncate,
    "zeros": _zeros,
    "append": _append,
    "swap": _swap,
    "repeat": _repeat,
    "delete": lambda path, _, __: path.unlink(),
}


async def _reopen(store: Path) -> None:
    async with aiodq.open(store) as opened:
        for name in opened.topics():
            await opened.topic(name).put(b"after")


def a_damaged_store(store: Path, draw: random.Random) -> list[Any]:
    """Make a store and damage it; sometimes it is then opened, and damaged once more."""
    asyncio.run(made(store, draw))
    said = damaged(store, draw)
    if draw.random() < 0.3:
        asyncio.run(_reopen(store))
        said = [*said, "opened", *(damaged(store, draw) if draw.random() < 0.5 else [])]
    return said


@pytest.mark.filterwarnings("ignore")  # what an opening has to say of damage is not tested here
def test_an_audit_finds_what_a_verification_finds(tmp_path: Path, seed: int) -> None:
    for number in range(STORES):
        store = tmp_path / f"store{number}"
        said = a_damaged_store(store, random.Random(seed + number))
        assert as_verified(audited(store)) == verified(store), (number, said)


@pytest.mark.filterwarnings("ignore")
def test_an_audit_by_spark_finds_it_as_well(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    a_damaged_store(tmp_path / "store", random.Random(seed))
    assert as_verified(audit(spark, tmp_path / "store")) == verified(tmp_path / "store")


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    await fill(tmp_path / "store", rounds=20, segment_bytes=1000)
    return tmp_path / "store"


@pytest.mark.filterwarnings("ignore")
async def test_an_audit_finds_what_was_missing_at_an_opening(store: Path) -> None:
    """An owner that goes on without them has noted it; they are as lost as before."""
    gone = segments(store / "orders")[2]
    first, stop = int(gone.stem), int(segments(store / "orders")[3].stem)
    gone.unlink()
    async with aiodq.open(store) as opened:
        await opened.topic("orders").put(b"more")
    (found,) = audited(store).findings
    assert (found.path, found.first, found.stop) == (str(store / "orders" / TOPIC_FILE), first, stop)
    assert as_verified(audited(store)) == verified(store)


@pytest.mark.filterwarnings("ignore")
async def test_what_was_missing_at_an_opening_is_not_missing_from_what_was_shipped_before_it(store: Path) -> None:
    segments(store / "orders")[-1].unlink()
    async with aiodq.open(store) as opened:
        await opened.topic("orders").put(b"more")
    shipped = ship(store, f"file://{store.with_name('lake')}").segments
    done = audited(store.with_name("lake"))
    assert (done.findings, done.segments) == ((), shipped)
    assert len(audited(store).findings) == 1


def test_an_audit_names_the_watermark_where_the_last_messages_are_missing(store: Path) -> None:
    *_, before, last = segments(store / "orders")
    last.unlink()
    (found,) = audited(store).findings
    assert (found.path, found.reason) == (
        str(store / "orders" / WATERMARK),
        f"the messages {last.stem.lstrip('0')} to 99 were durable and are missing",
    )
    assert before.exists()


def test_an_audit_tells_all_that_is_wrong_at_one_place(store: Path) -> None:
    """Such as why a segment's last messages cannot be read, and that its footer names them."""
    path = segments(store / "orders")[1]
    flip(path, data_end(path) - 20, 0)
    found = audited(store).findings
    assert len(found) == len(verified(store)[0]) > 1
    assert as_verified(audited(store)) == verified(store)
    assert "the frame's checksum is wrong" in {one.reason for one in found}


def unnamed(store: Path) -> None:
    """Leave no file that says which topic it is."""
    (store / "orders" / TOPIC_FILE).write_bytes(b"nothing")
    for path in segments(store / "orders"):
        overwrite(path, 0, bytes(SEGMENT_HEADER.size))


def test_an_audit_goes_through_a_topic_of_which_no_file_says_which_it_is(store: Path) -> None:
    unnamed(store)
    assert audited(store).segments == len(segments(store / "orders"))
    assert as_verified(audited(store)) == verified(store)
    assert {os.path.basename(found.path) for found in audited(store).findings} > {TOPIC_FILE}


def test_a_lossy_read_goes_through_it_too(store: Path) -> None:
    """The footers say how the messages before them are to be read; the last segment has none yet."""
    before = read(store, columns="offset,body")[: int(segments(store / "orders")[-1].stem)]
    unnamed(store)
    with pytest.raises(aiodq.CorruptionError):
        read(store)
    assert read(store, columns="offset,body", failOnDataLoss="false") == before


@pytest.mark.parametrize("when", ["planned", "checked"])
def test_what_an_owner_deletes_during_an_audit_is_not_missing(
    store: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Between others, and without a channel that would have settled it."""
    before, gone, *others = segments(store / "orders")

    class Beside(OsFileSystem):
        """The segment is deleted when it is looked at, for its header or to be checked."""

        looks = 0

        def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
            if path == str(gone):
                Beside.looks += 1
                if Beside.looks == ["planned", "checked"].index(when) + 1:
                    gone.unlink()
            return super().open(path, write=write, create=create)

    monkeypatch.setitem(audit.__globals__, "AnyFileSystem", Beside)
    done = audited(store)
    assert (done.findings, done.bytes) == ((), sum(path.stat().st_size for path in (before, *others)))


async def test_a_topic_that_is_deleted_during_an_audit_is_no_finding(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a new one of its name."""
    await fill(store, "others", rounds=2)

    def deleting(fs: Any, path: str, *rest: Any, **more: Any) -> Any:
        check = check_segment(fs, path, *rest, **more)
        if path == str(paths[0]):
            shutil.rmtree(store / "orders")
            shutil.copytree(store / "others", store / "orders")
        return check

    paths = segments(store / "orders")
    monkeypatch.setitem(audit.__globals__, "check_segment", deleting)
    done = audited(store)
    assert (done.findings, done.segments) == ((), len(paths) + len(segments(store / "others")))
