"""What the commands say: in 80 columns, by one name for one thing, in whole sentences, and in JSON where asked."""

from __future__ import annotations

import io
import shutil
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from aiodq.cli.commands.stats import tables
from aiodq.diskqueue import list_queues
from aiodq.stats import ChannelStats, HeldSegment, Latency, TopicStats
from aiodq.storage.io.quarantine import Damage
from aiodq.storage.offline.store_reader import TopicReader
from aiodq.storage.offline.summaries import ChannelSummary, StoreSummary, TopicSummary
from tests.cli.support import Running, aiodq, fill, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from aiodq.storage.read.stored_message import StoredMessage

DATA = Path(__file__).parents[1] / "data" / "diskqueue"

CHANNEL = ChannelSummary(
    name="billing",
    ready=12_345_678,
    in_flight=1000,
    deferred=1_234_567,
    depth=13_581_245,
    floor=1_234_567_890,
    returned=10_000,
    timed_out=12,
    dead=345,
    oldest_ns=time.time_ns() - 7_300 * 10**9,  # it stays "2 h" for most of an hour, however slow the machine
    backlog_bytes=98_765_432_109,
    dropped=12_345_678,
    put_to_deliver=Latency(1, 0.000123, 0.2, 12.3, 1234.5),
    put_to_ack=Latency(1, 0.00456, 0.2, 78.9, 12_345.6),
)
TOPIC = TopicSummary(
    name="orders",
    begin_offset=1_234_567_890,
    end_offset=1_250_000_000,
    durable_offset=1_249_999_999,
    segments=1234,
    disk_bytes=123_456_789_012,
    messages=15_432_110,
    damages=(),
    channels={"billing": CHANNEL},
    held=(HeldSegment(0, 1, 1, ("billing",)),),
)


def rendered(what: RenderableType) -> list[str]:
    """Return what a terminal of 80 columns shows."""
    console = Console(width=80, file=io.StringIO(), highlight=False, markup=False)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


class TestStat:
    def test_at_80_columns_everything_can_be_read(self) -> None:
        long = "a-name-of-sixty-four-letters-" * 2 + "64.64"
        path = "/srv/" + "in/a/deep/place/" * 8 + "store"
        other = replace(TOPIC, name=long, channels={long: replace(CHANNEL, name=long)})
        summary = StoreSummary(path, {"orders": TOPIC, long: other})
        for before in (None, summary):
            lines = rendered(tables(summary, before, 1.0))
            text = "\n".join(lines)
            assert max(map(len, lines)) == 80
            assert "…" not in text
            assert path in "".join(lines[:4])
            names = "".join(line[: line.index(" ") if " " in line else 80] for line in lines)
            assert names.count(long) >= 5
            for figure in ("13,581,245", "12,345,678", "1,000", "1,234,567", "10,000", "12", "345", "2 h", "123.5 GB"):
                assert figure in text
            for span in ("123 us", "12.3 s", "20.6 min", "4.56 ms", "1.32 min", "3.43 h"):
                assert span in text
            assert "98.8 GB" in text
            for number in ("1,234,567,890", "1,250,000,000", "15,432,110", "1,234"):
                assert f" {number} " in text
            assert ("1,249,999,999" in text) == (before is None)
            assert ("put/s" in text) == ("acked/s" in text) == (before is not None)

    def test_a_small_store_is_a_small_page(self) -> None:
        small = replace(CHANNEL, ready=2, in_flight=1, deferred=0, depth=3, floor=0, returned=0, timed_out=0, dead=0)
        small = replace(small, dropped=0, backlog_bytes=300, put_to_deliver=None, put_to_ack=None)
        topic = replace(TOPIC, begin_offset=0, end_offset=3, durable_offset=3, segments=1, disk_bytes=200, messages=3)
        lines = rendered(tables(StoreSummary("/srv/jobs", {"orders": replace(topic, channels={"billing": small})})))
        assert [line.rstrip() for line in lines[:6]] == [
            "/srv/jobs",
            "",
            "                       begin      end               disk",
            "topic      messages   offset   offset   segments   bytes",
            "────────────────────────────────────────────────────────",
            "orders            3        0        3          1   200 B",
        ]
        assert lines[9].startswith("────")
        assert lines[10].split() == ["orders/billing", "3", "2", "1", "0", "0", "2", "h", "300", "B"]

    def test_damage_is_told_whole(self) -> None:
        path = "/srv/" + "deep/" * 20 + "00000000000000000000.seg"
        topic = replace(TOPIC, damages=(Damage(path, 64, 128, "its checksum does not match"),))
        lines = rendered(tables(StoreSummary("/srv/jobs", {"orders": topic})))
        assert f"{path}atbyte64" in "".join("".join(lines).split())

    def test_one_thing_has_one_name(self, tmp_path: Path) -> None:
        """In the table, in JSON, and in the stats of a program."""
        of_topics = {field.name for field in fields(TopicSummary)}
        of_channels = {field.name for field in fields(ChannelSummary)}
        assert of_topics - {field.name for field in fields(TopicStats)} == {"messages"}
        assert of_channels - {field.name for field in fields(ChannelStats)} == {"returned"}
        fill(tmp_path, "t", [b"a"])
        topic = ok("stat", tmp_path, "--json").json["topics"]["t"]
        assert set(topic) == of_topics
        assert set(topic["channels"]["default"]) == of_channels
        text = ok("stat", tmp_path).out.decode().replace("\n", " ")
        for name in ("messages", "segments", "depth", "ready", "deferred", "returned", "floor", "dead"):
            assert name in text
            assert name in of_topics | of_channels

    def test_who_watches_may_have_seen_enough(self, tmp_path: Path) -> None:
        fill(tmp_path, "t", [b"a"])
        with Running("stat", tmp_path, "--watch") as watch:
            assert tmp_path.name.encode() in watch.line()
            watch.out.close()
            assert watch.process.wait() == 0
            assert watch.process.stderr is not None
            assert watch.process.stderr.read() == b""


def test_tail_shows_as_many_as_asked_for_beside_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "t", [b"a", b"b", b"c"])
    scan = TopicReader.scan

    def meanwhile(self: TopicReader, *bounds: int) -> Iterator[StoredMessage]:
        fill(tmp_path, "t", [b"d"])
        return scan(self, *bounds)

    monkeypatch.setattr(TopicReader, "scan", meanwhile)
    assert ok("tail", tmp_path, "t", "-n", "2").lines == [b"b", b"c"]


def test_numbers_and_verbs_agree(tmp_path: Path) -> None:
    for good, words in ((1, "before that, 1 message was put"), (2, "before that, 2 messages were put")):
        done = aiodq("put", tmp_path / "s", "t", "--jsonl", stdin=b"1\n" * good + b"{")
        assert done.code == 1
        assert words in done.err
    for number in (0, 1, 57):
        fill(tmp_path / str(number), "t", [b"x"] * number or [b"x"])
        if not number:
            ok("get", tmp_path / "0", "t")
        (line,) = ok("channels", tmp_path / str(number), "t").lines
        many = "1 message" if number == 1 else f"{number} messages"
        assert line.decode() == f"default: {many} to come, from offset {0 if number else 1} on"


def test_what_was_done_in_json(tmp_path: Path) -> None:
    (name,) = list_queues(DATA / "torn")
    done = aiodq("import-diskqueue", DATA / "torn", name, tmp_path / "s", "t", "--json")
    assert (done.code, done.err) == (1, "")
    imported: dict[str, Any] = done.json
    assert (imported["topic"], imported["messages"]) == ("t", 89)
    assert "torn" in {finding["kind"] for finding in imported["findings"]}
    (tmp_path / "q").mkdir()
    exported = ok("export-diskqueue", tmp_path / "s", "t", tmp_path / "q", "orders", "--json").json
    assert exported == {"topic": "t", "messages": 89, "damages": []}
    shutil.rmtree(tmp_path / "q")
    ok("get", tmp_path / "s", "t", "-n", "1")
    sought = ok("seek", tmp_path / "s", "t", "default", "80", "--json").json
    assert sought == {"topic": "t", "channel": "default", "depth": 9, "floor": 80}
    fill(tmp_path / "s", "dead", [b"of nobody"])
    requeued = ok("requeue-dead", tmp_path / "s", "dead", "--json").json
    assert requeued == {"topic": "dead", "requeued": 0, "stayed": 1}


def test_a_time_without_a_zone_is_told_with_one_that_is_taken(tmp_path: Path) -> None:
    fill(tmp_path, "t", [b"a"])
    for text in ("2026-01-31", "2026-01-31T12:00", "2026-01-31 12:00:00.5"):
        done = aiodq("seek", tmp_path, "t", "default", text)
        assert done.code == 2
        proposed = done.err.rstrip().rpartition("for example ")[2]
        assert ok("seek", tmp_path, "t", "default", proposed).lines
