"""What the loggers `aiodq.store`, `.topic` and `.delivery` say, and how often."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.engine.monitoring.reporter import _QUIET
from aiodq.testing import FaultPlan
from tests.channels.support import Machine, soon
from tests.watching.support import told

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestStore:
    async def test_opening_says_what_and_how_long(self, machine: Machine, lines: pytest.LogCaptureFixture) -> None:
        async with machine.store() as store:
            await store.queue("jobs").put(b"a")
        lines.clear()
        async with machine.store():
            (opened,) = told(lines, "aiodq.store", logging.INFO)
            assert opened.getMessage() == "opened /s in 0.000 s: 1 topic, 1 channel, 1 message"
            assert [opened.__dict__[name] for name in ("topics", "channels", "messages")] == [1, 1, 1]
            assert [opened.__dict__[name] for name in ("recovered_bytes", "damages")] == [0, 0]
        assert "closed /s" in told(lines, "aiodq.store", logging.INFO)[-1].getMessage()

    async def test_a_failed_store_is_an_error_with_its_cause(
        self, machine: Machine, lines: pytest.LogCaptureFixture
    ) -> None:
        store = await aiodq.open("/s", fs=machine.fs, clock=machine.clock)
        machine.fs.plan = FaultPlan.parse("sync@1:EIO:lasting")
        with pytest.raises(aiodq.StoreFailedError):
            await store.topic("t").put(b"a")
        await store.aclose()
        (failed,) = told(lines, "aiodq.store", logging.ERROR)
        assert failed.exc_info is not None
        assert isinstance(failed.exc_info[1], (OSError, aiodq.StorageError))


class TestTopic:
    async def test_channels_made_and_deleted(self, machine: Machine, lines: pytest.LogCaptureFixture) -> None:
        async with machine.store() as store:
            topic = store.topic("t")
            topic.channel("c")
            await topic.put(b"a")
            await topic.delete_channel("c")
            await store.delete_topic("t")
            texts = [record.getMessage() for record in told(lines, "aiodq.topic", logging.INFO)]
            assert [text.rsplit(" ", 2)[-1] for text in texts] == ["0", "deleted", "deleted"]
            assert [record.__dict__["channel"] for record in told(lines, "aiodq.topic", logging.INFO)] == [
                "c",
                "c",
                None,
            ]


class TestDelivery:
    async def test_a_burst_of_time_outs_is_one_line(self, machine: Machine, lines: pytest.LogCaptureFixture) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
            await jobs.put_many([b"a"] * 100)
            await jobs.get_many(100)
            machine.clock.advance(5)
            (line,) = told(lines, "aiodq.delivery", logging.WARNING)
            assert "100" in line.getMessage()
            assert (line.__dict__["topic"], line.__dict__["channel"], line.__dict__["count"]) == (
                "jobs",
                "default",
                100,
            )

    async def test_more_of_the_same_is_summed_up(self, machine: Machine, lines: pytest.LogCaptureFixture) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(max_attempts=1))
            await jobs.put_many([b"a"] * 100)
            for message in await jobs.get_many(100):
                await message.nack()
            (first,) = told(lines, "aiodq.delivery", logging.WARNING)
            assert "for good" in first.getMessage()
            assert first.__dict__["attempt"] == 1
            for _ in range(3 * _QUIET):
                store._store_engine.reporter.tick()
            assert [record.__dict__["count"] for record in told(lines, "aiodq.delivery", logging.WARNING)] == [1, 99]
            await jobs.put(b"b")
            await (await soon(jobs.get())).nack()
            assert told(lines, "aiodq.delivery", logging.WARNING)[-1].__dict__["offset"] == 100

    async def test_what_was_not_summed_up_is_said_at_close(
        self, machine: Machine, lines: pytest.LogCaptureFixture
    ) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"a", b"b", b"c"])
            for message in await jobs.get_many(3):
                await message.reject()
        assert [record.__dict__["count"] for record in told(lines, "aiodq.delivery", logging.WARNING)] == [1, 2]

    async def test_a_reason_forges_no_line(self, machine: Machine, lines: pytest.LogCaptureFixture) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
            await jobs.put(b"a")
            await (await jobs.get()).reject("no\r\nCRITICAL the disk is on fire \x1b[2J\u2028x\udcff")
            (dead,) = told(lines, "aiodq.delivery", logging.WARNING)
            assert r"is dead (no CRITICAL the disk is on fire \x1b[2J x\udcff)" in dead.getMessage()
            letter = await store.queue("dead").get()
            assert letter.headers["aiodq-reason"].startswith("no\r\nCRITICAL")
            await letter.ack()

    async def test_an_error_of_a_handler_forges_no_line(
        self, machine: Machine, lines: pytest.LogCaptureFixture
    ) -> None:
        async def fail(_: aiodq.Message) -> None:
            raise ValueError("no\nCRITICAL the disk is on fire \x1b[2J")

        async with machine.store() as store:
            jobs = store.queue("jobs")
            await jobs.put(b"a")
            consuming = asyncio.create_task(jobs.consume(fail))
            while not (failed := told(lines, "aiodq.delivery", logging.WARNING)):
                await asyncio.sleep(0)
            assert r"ValueError: no CRITICAL the disk is on fire \x1b[2J; again" in failed[0].getMessage()
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)


class Failing(logging.Filter):
    """A filter that fails, as one does that looks up a context that a store's own tasks have not."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError(f"no request here: {record.getMessage()}")


@pytest.fixture
def broken() -> Iterator[None]:
    """Let a filter of each logger fail."""
    filter_, names = Failing(), ("aiodq.store", "aiodq.topic", "aiodq.delivery")
    for name in names:
        logging.getLogger(name).addFilter(filter_)
    yield
    for name in names:
        logging.getLogger(name).removeFilter(filter_)


@pytest.mark.usefixtures("lines", "broken")
class TestBrokenLogging:
    async def test_a_store_goes_on(self, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=5))
            await jobs.put(b"a")
            await jobs.get()
            machine.clock.advance(5)
            message = await soon(jobs.get())
            assert (message.attempts, store.health().failed) == (2, None)
            await message.ack()
            await store.delete_topic("jobs")
        said = capsys.readouterr().err
        for line in ("opened /s", "1 timed out", "was deleted", "closed /s"):
            assert line in said
        assert "LookupError: no request here" in said

    async def test_so_does_consume(self, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
        attempts: list[int] = []

        async def fail_once(message: aiodq.Message) -> None:
            attempts.append(message.attempts)
            if message.attempts == 1:
                raise ValueError("once")

        async with machine.store() as store:
            jobs = store.queue("jobs", aiodq.ChannelOptions(backoff=aiodq.Backoff(first=1, jitter=0)))
            await jobs.put(b"a")
            consuming = asyncio.create_task(jobs.consume(fail_once))
            while jobs.deferred() == 0:
                await asyncio.sleep(0)
            machine.clock.advance(1)
            await soon(jobs.join())
            await jobs.stop()
            await soon(consuming)
        assert attempts == [1, 2]
        assert "ValueError: once" in capsys.readouterr().err


async def test_a_line_names_where_it_was_written(machine: Machine, lines: pytest.LogCaptureFixture) -> None:
    async with machine.store() as store:
        await store.topic("t").put(b"a")
    assert {record.filename for record in lines.records if record.name == "aiodq.store"} == {"reporter.py"}
