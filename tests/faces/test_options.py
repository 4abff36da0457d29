"""What may be chosen is checked when it is chosen, and what is refused says how to write it."""

from __future__ import annotations

import asyncio
import math
import pickle
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

import pytest

import aiodq
import aiodq.sync
from aiodq import Backoff, ChannelOptions, InvalidOptionError, Retention, StoreOptions
from aiodq.options import seconds
from tests.channels.support import counts, ready

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.channels.support import Machine

WRONG_VALUES: list[tuple[type, str, list[Any]]] = [
    (StoreOptions, "sync_every", [0, -1, 1 << 63]),
    (StoreOptions, "sync_interval", [0, -1.0, math.nan, math.inf, 1e11, timedelta(0), timedelta(-1)]),
    (StoreOptions, "segment_bytes", [0, -5, 1 << 63]),
    (StoreOptions, "min_message_bytes", [-1, 1 << 40]),
    (StoreOptions, "max_message_bytes", [-1, 1 << 40]),
    (StoreOptions, "max_bytes", [0]),
    (StoreOptions, "max_messages", [0]),
    (StoreOptions, "memory_bytes", [1]),
    (StoreOptions, "sync", ["never", ""]),
    (StoreOptions, "overflow", ["drop"]),
    (StoreOptions, "compression", ["gzip"]),
    (StoreOptions, "sync_backend", ["io_uring"]),
    (Retention, "consumed", ["remove"]),
    (Retention, "unconsumed", [""]),
    (Retention, "max_age", [0, -1, math.nan, 1e11, timedelta(0), timedelta.max]),
    (Retention, "max_bytes", [0]),
    (Retention, "max_segments", [0]),
    (Backoff, "first", [0, -1, math.nan, math.inf, 1e11]),
    (Backoff, "factor", [0.5, math.nan, math.inf]),
    (Backoff, "limit", [0, math.inf]),
    (Backoff, "jitter", [-0.1, 1.1, math.nan]),
    (ChannelOptions, "start", [-1, "newest", datetime(2026, 1, 1)]),  # noqa: DTZ001 - without a zone it is refused
    (ChannelOptions, "visibility_timeout", [0, -1, math.nan, math.inf, timedelta(0)]),
    (ChannelOptions, "max_in_flight", [0]),
    (ChannelOptions, "max_attempts", [0]),
    (ChannelOptions, "tags", [[]]),
]

NO_NUMBER: list[Any] = ["5", b"5", True, [], {}, object(), None]
NO_WHOLE: list[Any] = [*NO_NUMBER, 2.5, math.inf, math.nan, timedelta(1)]
WRONG_TYPES: list[tuple[type, str, list[Any]]] = [
    *[(StoreOptions, name, NO_WHOLE) for name in ("sync_every", "segment_bytes", "memory_bytes")],
    *[(StoreOptions, name, NO_WHOLE) for name in ("min_message_bytes", "max_message_bytes")],
    *[(StoreOptions, name, NO_WHOLE[:6]) for name in ("max_bytes", "max_messages")],
    (StoreOptions, "sync_interval", NO_NUMBER),
    (StoreOptions, "retention", ["keep", "forever", None, timedelta(7), {"consumed": "keep"}, []]),
    *[(StoreOptions, name, [None, 1, True, b"always", []]) for name in ("sync", "overflow", "sync_backend")],
    (StoreOptions, "compression", [True, 3, []]),
    (StoreOptions, "alarms", [None, 5, "depth", {"depth": 5}, [5], aiodq.Alarm(depth=5)]),
    *[(Retention, name, [None, True, []]) for name in ("consumed", "unconsumed")],
    (Retention, "max_age", [*NO_NUMBER[:6], datetime.now(UTC)]),
    *[(Retention, name, NO_WHOLE[:6]) for name in ("max_bytes", "max_segments")],
    *[(Backoff, name, NO_NUMBER) for name in ("first", "limit", "factor", "jitter")],
    (ChannelOptions, "start", [1.5, 1.7e9, date(2026, 1, 1), b"latest", [], True, timedelta(1)]),
    (ChannelOptions, "visibility_timeout", NO_NUMBER[:6]),
    (ChannelOptions, "max_in_flight", NO_WHOLE),
    (ChannelOptions, "max_attempts", NO_WHOLE[:6]),
    (ChannelOptions, "dead_letter", [True, 5, b"dead", []]),
    (ChannelOptions, "backoff", [5, 2.5, "1s", timedelta(1), {}, True]),
    (ChannelOptions, "tags", ["red", b"red", [1], ["red", None], 5, iter(["red"])]),
    (ChannelOptions, "auto_ack", [1, 0, "yes", None]),
]


@pytest.mark.parametrize(("cls", "name", "values"), WRONG_VALUES, ids=lambda part: getattr(part, "__name__", None))
def test_a_value_out_of_its_range_is_refused_when_given(cls: type, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidOptionError, match=name) as caught:
            cls(**{name: value})
        assert not isinstance(caught.value, TypeError), value
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("cls", "name", "values"), WRONG_TYPES, ids=lambda part: getattr(part, "__name__", None))
def test_a_value_of_a_wrong_type_is_a_type_error_too(cls: type, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidOptionError, match=name) as caught:
            cls(**{name: value})
        assert isinstance(caught.value, TypeError), value
        text = str(caught.value)
        assert type(value).__name__ in text
        assert "write" in text


def test_every_option_is_in_both_tables() -> None:
    for table, never in (
        (WRONG_VALUES, {"retention", "dead_letter", "backoff", "auto_ack", "alarms"}),
        (WRONG_TYPES, set()),
    ):
        for cls in (StoreOptions, Retention, Backoff, ChannelOptions):
            tried = {name for tried, name, _ in table if tried is cls}
            assert tried | never >= set(cls.__dataclass_fields__), cls


def test_a_span_of_time_is_seconds_or_a_timedelta_and_the_same_options_either_way() -> None:
    week = timedelta(days=7)
    assert Retention(max_age=week) == Retention(max_age=604_800)
    assert StoreOptions(sync_interval=timedelta(seconds=2)) == StoreOptions(sync_interval=2)
    assert Backoff(first=timedelta(seconds=1), limit=timedelta(minutes=15)) == Backoff()
    assert ChannelOptions(visibility_timeout=timedelta(minutes=1)) == ChannelOptions()
    backoff = Backoff(first=timedelta(seconds=2), factor=2, limit=timedelta(seconds=5), jitter=0)
    assert [backoff.seconds(attempts, 0.5) for attempts in (1, 2, 3)] == [2, 4, 5]
    assert seconds(week) == seconds(604_800) == 604_800


def test_tags_are_the_same_in_any_collection() -> None:
    assert ChannelOptions(tags=["b", "a"]) == ChannelOptions(tags={"a", "b"}) == ChannelOptions(tags=("a", "b", "a"))


def test_an_option_in_the_wrong_place_is_told_where_it_belongs() -> None:
    store_options: Any = StoreOptions
    channel_options: Any = ChannelOptions
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: store_options(max_in_flight=5), r"one of ChannelOptions, write ChannelOptions\(max_in_flight="),
        (lambda: channel_options(sync="os"), r"it is one of StoreOptions, write StoreOptions\(sync="),
        (lambda: store_options(max_age=5), r"it is one of Retention, write Retention\(max_age="),
        (lambda: store_options(segment_byte=5), "write segment_bytes="),
        (lambda: channel_options(colour=5), "there are start, visibility_timeout"),
        (lambda: store_options("os"), r"by name, not 'os': write StoreOptions\(sync="),
    ]
    for call, text in calls:
        with pytest.raises(InvalidOptionError, match=text) as caught:
            call()
        assert isinstance(caught.value, TypeError)


def test_an_error_of_an_option_can_be_sent_to_another_process() -> None:
    half: Any = 2.5
    with pytest.raises(TypeError) as caught:
        ChannelOptions(max_in_flight=half)
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made in the line itself
    assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))


@pytest.mark.parametrize("kind", [kind for name in aiodq.__all__ if is_dataclass(kind := getattr(aiodq, name))])
def test_types_of_fields_are_there_at_run_time(kind: type) -> None:
    """What reads settings from a file, or makes a form of them, evaluates the types."""
    assert get_type_hints(kind)
    assert get_type_hints(vars(kind)["__init__"])


class TestPositions:
    POSITIONS: ClassVar[tuple[Any, ...]] = (1.5, 1.7e9, date(2026, 1, 1), b"latest", [], None, True, timedelta(1), {})

    @pytest.mark.parametrize("position", POSITIONS, ids=repr)
    async def test_a_seek_to_what_is_no_position_touches_nothing(self, machine: Machine, position: Any) -> None:
        async with machine.store(retention=Retention(consumed="keep")) as store:
            jobs = store.queue("jobs")
            await jobs.put_many([b"a", b"b", b"c"])
            await (await jobs.get()).ack()
            held = await jobs.get()
            with pytest.raises(InvalidOptionError, match="position") as caught:
                await jobs.seek(position)
            assert isinstance(caught.value, TypeError)
            assert counts(jobs) == (1, 1, 0)
            await held.ack()
            assert ready(jobs) == [b"c"]

    async def test_a_time_beyond_all_others_is_a_time(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", b"b"])
            for zone in (UTC, timezone(timedelta(hours=-12)), timezone(timedelta(hours=12))):
                assert await jobs.offset_at(datetime.max.replace(tzinfo=zone)) == 2
                assert await jobs.offset_at(datetime.min.replace(tzinfo=zone)) == 0
            await jobs.seek(datetime.max.replace(tzinfo=UTC))
            assert jobs.depth == 0
            start = datetime.max.replace(tzinfo=UTC)
            late = jobs.topic.channel("late", ChannelOptions(start=start))
            await jobs.topic.settle_in()
            assert late.depth == 0

    async def test_offset_at_takes_a_datetime_with_a_zone(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            wrong: Any
            for wrong in (datetime(2026, 1, 1), date(2026, 1, 1), 1.7e9, "2026-01-01", None):  # noqa: DTZ001
                with pytest.raises(InvalidOptionError, match="datetime with a time zone"):
                    await jobs.offset_at(wrong)


class TestArguments:
    async def test_get_many_checks_before_it_takes(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            await jobs.put_many([b"a", b"b"])
            for wrong in ({"linger": None}, {"linger": "1"}, {"linger": -1}, {"linger": math.nan}, {"linger": 1e11}):
                with pytest.raises(InvalidOptionError, match="linger"):
                    await jobs.get_many(5, **wrong)
            many: Any
            for many in (0, -1, 2.5, "2", None, True):
                with pytest.raises(InvalidOptionError, match="max_items"):
                    await jobs.get_many(many)
            assert counts(jobs) == (2, 0, 0)
            assert [message.body for message in await jobs.get_many(5, linger=timedelta(0))] == [b"a", b"b"]

    async def test_a_time_out_is_a_span_of_time(self, machine: Machine) -> None:
        async with machine.jobs() as jobs:
            wrong: Any
            for wrong in ("1", math.nan, math.inf, [], True, 1e11):
                with pytest.raises(InvalidOptionError, match="timeout"):
                    await jobs.get(wrong)
            for over in (0, -1, timedelta(0), timedelta(-1), -math.inf):
                with pytest.raises(TimeoutError):
                    await jobs.get(over)
            await jobs.put(b"x")
            assert (await jobs.get(timedelta(hours=1))).body == b"x"

    async def test_drain_checks_before_it_refuses_puts(self, machine: Machine) -> None:
        async with machine.store() as store:
            jobs = store.queue("jobs")
            wrong: Any
            for wrong in ("1", math.nan, [], True):
                with pytest.raises(InvalidOptionError, match="timeout"):
                    await store.drain(wrong)
            await jobs.put(b"x")
            assert not await store.drain(timedelta(0))

    @pytest.mark.parametrize("wrong", ["no", 0, 1, None])
    async def test_a_switch_is_true_or_false(self, tmp_path: Path, wrong: Any) -> None:
        """`"no"` is true to Python. What is refused has changed nothing."""

        def refused(name: str, call: Callable[..., Any], *given: Any) -> None:
            with pytest.raises(InvalidOptionError, match=rf"{name} is True or False, not {wrong!r} ") as caught:
                call(*given, **{name: wrong})
            assert isinstance(caught.value, TypeError)

        async def refused_later(name: str, call: Callable[..., Any], *given: Any) -> None:
            with pytest.raises(InvalidOptionError, match=rf"{name} is True or False, not {wrong!r} ") as caught:
                await call(*given, **{name: wrong})
            assert isinstance(caught.value, TypeError)

        async with aiodq.open_queue(tmp_path / "s") as jobs:
            await jobs.put_many([b"a", b"b"])
            refused("create", aiodq.open, tmp_path / "t")
            refused("create", aiodq.open_queue, tmp_path / "t")
            refused("auto_ack", ChannelOptions)
            message = await jobs.get()
            await refused_later("count_attempt", message.nack)
            refused("count_attempt", message.nack_nowait)
            assert counts(jobs) == (1, 1, 0)
            refused("reverse", jobs.scan)
            refused("reverse", jobs.topic.scan)
            await refused_later("renew", jobs.consume, print)
            await refused_later("renew", jobs.topic.channel("default").consume, print)
            refused("immediate", jobs.shutdown)
            await jobs.put(b"c")
            reader = aiodq.open_reader(tmp_path / "s").topic("queue")
            refused("strict", reader.scan)
            for name in ("strict", "verify"):
                refused(name, reader.record_batches)
                refused(name, reader.to_arrow)
        await asyncio.to_thread(self._refused_without_a_loop, tmp_path / "s", refused)

    @staticmethod
    def _refused_without_a_loop(path: Path, refused: Callable[..., None]) -> None:
        refused("create", aiodq.sync.open, path)
        refused("create", aiodq.sync.open_queue, path)
        with aiodq.sync.open_queue(path) as jobs:
            message = jobs.get()
            refused("count_attempt", message.nack)
            refused("count_attempt", message.nack_nowait)
            refused("reverse", jobs.scan)
            refused("renew", jobs.consume, print)
            refused("immediate", jobs.shutdown)
            message.ack()
            jobs.put(b"d")

    async def test_options_of_a_channel_do_for_no_topic_and_the_other_way_round(self, machine: Machine) -> None:
        other: Any = ChannelOptions()
        own: Any = StoreOptions()
        plain: Any = {"sync": "os"}
        path = "/nowhere"
        calls: list[Callable[[], object]] = [
            lambda: aiodq.open(path, other),
            lambda: aiodq.open(path, plain),
            lambda: aiodq.open_queue(path, other),
            lambda: aiodq.open_queue(path, None, own),
        ]
        async with machine.store() as store:
            calls += [
                lambda: store.topic("t", other),
                lambda: store.topic("t", plain),
                lambda: store.queue("t", own),
                lambda: store.topic("u").channel("c", own),
                lambda: store.topic("u").channel("c", plain),
            ]
            for call in calls:
                with pytest.raises(InvalidOptionError, match=r"takes is (Store|Channel)Options, not .*: ") as caught:
                    call()
                assert isinstance(caught.value, TypeError)
            await asyncio.sleep(0)
            assert store.topics() == []
