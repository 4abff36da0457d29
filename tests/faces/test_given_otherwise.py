"""What is given as a subclass, a view or a number that no program means: it is stored as what it says, or refused."""

from __future__ import annotations

import array
import asyncio
import inspect
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, MagicMock, Mock

import numpy as np
import pytest

import aiodq
import aiodq.sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path


Any_: Any = aiodq
UNSET = 10**5000
"""An int that Python does not write in decimal digits."""


class Word(str, Enum):  # noqa: UP042 - the older way, by which `str(Word.PAID)` is "Word.PAID"
    """Words as programs keep them."""

    TOPIC = "orders"
    CHANNEL = "billing"
    DEAD = "orders.dead"
    PAID = "paid"
    NAME = "source"
    WEB = "web"
    REASON = "no such customer"


def plain(*texts: str | None) -> bool:
    """Return whether these are `str` and nothing else."""
    return all(type(text) is str for text in texts)


async def test_members_of_an_enum_are_stored_as_their_values(store: aiodq.Store) -> None:
    options = aiodq.ChannelOptions(dead_letter=Word.DEAD, tags=[Word.PAID], start="earliest")
    topic = store.topic(Word.TOPIC)
    channel = topic.channel(Word.CHANNEL, options)
    headers: dict[str, str] = {Word.NAME: Word.WEB}
    await topic.put(b"put", tag=Word.PAID, headers=headers)
    await topic.put_many([aiodq.Draft(b"draft", tag=Word.PAID, headers=headers)] * 30)
    await topic.put_many([b"many"], tag=Word.PAID, headers=headers)
    async with store.transaction() as transaction:
        transaction.put(Word.TOPIC, b"transaction", tag=Word.PAID, headers=headers)
    messages = await channel.get_many(100)
    assert len(messages) == 33
    for message in messages:
        assert plain(message.topic, message.channel, message.tag, *message.headers, *message.headers.values())
        assert (message.tag, message.headers) == ("paid", {"source": "web"})
    assert plain(topic.name, channel.name, *store.topics(), *topic.channels())
    assert plain(options.dead_letter, *(options.tags or ()))
    await messages[0].reject(Word.REASON)
    letter = await store.queue(Word.DEAD).get()
    assert plain(letter.topic, *letter.headers.values())
    assert letter.headers["aiodq-reason"] == "no such customer"


async def test_what_a_consumer_writes_into_headers_reaches_nobody_else(store: aiodq.Store) -> None:
    topic = store.topic("t")
    first = topic.channel("first")
    second = topic.channel("second", aiodq.ChannelOptions(start="earliest"))
    await topic.put_many([aiodq.Draft(b"with", headers={"a": "1"}), b"without"])
    await topic.put(b"plain")
    for message in await first.get_many(3):
        headers: Any = message.headers
        headers["mine"] = "2"
        await message.nack()
    await topic.put_many([aiodq.Draft(b"later", headers={"a": "1"}), b"later still"])
    for channel in (first, second):
        messages = await channel.get_many(5)
        assert [message.headers for message in messages] == [{"a": "1"}, {}, {}, {"a": "1"}, {}]
    assert [dict(message.headers) async for message in topic.scan()] == [{"a": "1"}, {}, {}, {"a": "1"}, {}]


@pytest.mark.parametrize("headers", [[], "", 0, False, b""])
async def test_headers_that_are_no_mapping_are_refused_though_empty(store: aiodq.Store, headers: object) -> None:
    topic: Any = store.topic("t")
    with pytest.raises(aiodq.InvalidMessageTypeError, match="headers are a mapping"):
        await topic.put(b"x", headers=headers)
    await topic.put(b"x", headers={})


async def test_a_key_is_as_long_as_its_bytes(store: aiodq.Store) -> None:
    topic = store.topic("t")
    numbers = array.array("Q", bytes((1 << 20) + 8))
    with pytest.raises(aiodq.InvalidMessageError, match="this key is longer"):
        await topic.put(b"x", key=memoryview(numbers))
    offset = await topic.put(b"x", key=memoryview(numbers[1:]))
    assert (await topic.read(offset)).key == bytes(1 << 20)


async def test_an_array_is_refused_with_what_to_write_instead(store: aiodq.Store) -> None:
    topic: Any = store.topic("t")
    with pytest.raises(aiodq.InvalidMessageTypeError, match=r"write put\(value.tobytes\(\)\)"):
        await topic.put(array.array("b", b"abc"))


async def test_a_number_that_cannot_be_written_is_refused_all_the_same(store: aiodq.Store) -> None:
    topic = store.topic("t")
    channel = topic.channel("c")
    await topic.put(b"x")
    for asked in (
        topic.put(b"x", delay=UNSET),
        topic.read(UNSET),
        channel.seek(UNSET),
        channel.cancel(-UNSET),
        channel.get_many(UNSET),
        channel.get(UNSET),
    ):
        with pytest.raises((aiodq.InvalidOptionError, aiodq.InvalidMessageError), match=r"<int of \d+ bits>"):
            await asked
    for make in (
        lambda: aiodq.StoreOptions(segment_bytes=UNSET),
        lambda: aiodq.StoreOptions(retention=Any_.Retention(max_age=UNSET)),
        lambda: Any_.StoreOptions(retention=UNSET),
        lambda: aiodq.ChannelOptions(start=UNSET),
        lambda: aiodq.Backoff(factor=UNSET),
        lambda: topic.scan(-UNSET),
    ):
        with pytest.raises(aiodq.InvalidOptionError, match=r"<int of \d+ bits>"):
            make()
    with pytest.raises(aiodq.InvalidOptionError, match="factor"):
        aiodq.Backoff(factor=10**400)


class _MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_a_reason_that_is_no_text_ends_no_consumer(tmp_path: Path, mode: Any) -> None:
    reasons: list[Any] = [5, None, ValueError("x"), _MuteError(), "\ud800", Word.REASON, np.array([1, 2]), ""]
    async with aiodq.open(tmp_path, mode=mode) as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        dead = store.queue("dead")
        await jobs.put_many([b"%d" % number for number in range(len(reasons))])

        def refuse(message: aiodq.Message) -> None:
            raise aiodq.Reject(reasons[int(message.body)])

        working = asyncio.create_task(jobs.consume(refuse))
        letters = [await dead.get(timeout=20) for _ in reasons]
        await jobs.stop()
        await working
    letters.sort(key=lambda letter: int(letter.headers["aiodq-offset"]))
    told = [letter.headers["aiodq-reason"] for letter in letters]
    assert told == [
        "5", "rejected", "x", "(its text cannot be had)", "\\ud800", "no such customer", "[1 2]", "rejected",
    ]  # fmt: skip


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


async def test_a_view_that_was_released_is_refused(store: aiodq.Store) -> None:
    topic = store.topic("t")
    puts: list[Any] = [topic.put, topic.put_nowait, lambda body: topic.put_many([b"x", body])]
    for put in puts:
        with pytest.raises(aiodq.InvalidMessageError, match=r"body cannot be read: .*released"):
            await put(released())
    with pytest.raises(aiodq.InvalidMessageError, match=r"key cannot be read: .*released"):
        await topic.put(b"x", key=released())
    assert topic.end_offset == 0
    assert await topic.put(b"x") == 0


async def test_a_draft_is_one_of_many(store: aiodq.Store) -> None:
    draft: Any = aiodq.Draft(b"x", tag="a")
    with pytest.raises(aiodq.InvalidMessageTypeError, match=r"put_many\(\[draft\]\)"):
        await store.topic("t").put(draft)
    async with store.transaction() as transaction:
        with pytest.raises(aiodq.InvalidMessageTypeError, match=r"put_many\(\[draft\]\)"):
            transaction.put("t", draft, tag="b")
    assert store.topics() == []


@pytest.mark.parametrize("call", [aiodq.open, aiodq.open_queue, aiodq.open_reader])
def test_a_path_that_is_no_unicode_is_refused(call: Any) -> None:
    with pytest.raises(aiodq.StorageError, match="is the name of a directory"):
        call("half a pair \ud800")


class Vague:
    """What is equal to something only here and there, as an array of numpy's."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]  # as of an array


class NoTime(datetime):
    """A datetime that is no time, as pandas' NaT."""

    def utcoffset(self) -> timedelta | None:
        raise ValueError("NaT does not support utcoffset")


async def test_what_is_vague_is_refused(store: aiodq.Store) -> None:
    with pytest.raises(aiodq.InvalidOptionTypeError, match="retention is a Retention"):
        Any_.StoreOptions(retention=Vague())
    never = NoTime(2026, 1, 31, tzinfo=UTC)
    with pytest.raises(aiodq.InvalidOptionError, match="start is a datetime with a time zone"):
        aiodq.ChannelOptions(start=never)
    with pytest.raises(aiodq.InvalidOptionError, match="a datetime with a time zone"):
        await store.topic("t").offset_at(never)


class Mute:
    """What cannot be shown."""

    def __repr__(self) -> str:
        raise KeyError("no text")


class Tall:
    """What is shown on several lines, as a table is, and with what is no Unicode."""

    def __repr__(self) -> str:
        return "a\n0 1\x1b[31m\ud800"


class Nowhere:
    """What says that it is a path, and names none."""

    def __fspath__(self) -> Any:
        return 5


class NoDimension:
    """An array without dimensions, as numpy has them: by its methods it can be iterated over, and it refuses to."""

    def __iter__(self) -> Any:
        raise TypeError("iteration over a 0-d array")

    def __len__(self) -> int:
        raise TypeError("len() of unsized object")

    def __contains__(self, _: object) -> bool:
        return False


def handed(store: Any, given: Any) -> list[Callable[[], Any]]:
    """Return calls in which something that is no such thing is given for something."""
    topic, queue = store.topic("t"), store.queue("q")
    calls = [
        lambda: store.topic(given),
        lambda: store.queue("q", given),
        lambda: store.delete_topic(given),
        lambda: store.requeue_dead("t", where=given),
        lambda: store.backup(given),
        lambda: topic.channel(given),
        lambda: topic.put(given),
        lambda: topic.put(b"x", headers={"name": given}),
        lambda: topic.put_many(given),
        lambda: topic.put_many([given]),
        lambda: topic.channel("c").ack_many(given),
        lambda: topic.channel("c").ack_many([given]),
        lambda: topic.channel("c").consume(given),
        lambda: topic.channel("c").seek(given),
        lambda: queue.task_done(given),
        lambda: queue.ack_many(given),
        lambda: Any_.StoreOptions(given),
        lambda: Any_.ChannelOptions(tags=given),
        lambda: Any_.open(given),
        lambda: Any_.open_reader(given),
        lambda: Any_.run(given),
        lambda: Any_.open_reader(store.path).stats(given),
        lambda: Any_.open_reader(store.path).topic("t").to_arrow(columns=given),
    ]
    if inspect.iscoroutinefunction(type(store).backup):
        calls += [partial(in_transaction, store, given, several=several) for several in (False, True)]
    else:
        calls += [partial(by_thread, store, given, several=several) for several in (False, True)]
    return calls


async def in_transaction(store: Any, given: Any, *, several: bool) -> None:
    async with store.transaction() as transaction:
        (transaction.ack_many if several else transaction.ack)(given)


def by_thread(store: Any, given: Any, *, several: bool) -> None:
    with store.transaction() as transaction:
        (transaction.ack_many if several else transaction.ack)(given)


WRONG: dict[str, tuple[Any, str]] = {
    "endless": (UNSET, rf"<int of {UNSET.bit_length()} bits>"),
    "mute": (Mute(), "<Mute>"),
    "tall": (Tall(), r"a\\n0 1\\x1b\[31m\\ud800"),
    "nowhere": (Nowhere(), "<.*Nowhere object at "),
    "undimensioned": (NoDimension(), "<.*NoDimension object at "),
}


@contextmanager
def refusal(text: str) -> Iterator[None]:
    with pytest.raises(aiodq.AiodqError, match=text) as caught:
        yield
    assert isinstance(caught.value, (aiodq.InvalidOptionError, aiodq.InvalidMessageError, aiodq.InvalidNameError))
    assert str(caught.value).isprintable()


@asynccontextmanager
async def opened(path: Path, mode: Any) -> AsyncIterator[aiodq.Store]:
    async with AsyncExitStack() as stack:
        if mode == "client":
            await stack.enter_async_context(aiodq.open(path, mode="shared"))
        store = await stack.enter_async_context(aiodq.open(path, mode=mode))
        await store.topic("t").put(b"x")
        yield store


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
async def test_what_cannot_be_shown_is_refused_in_words(tmp_path: Path, name: str, mode: Any) -> None:
    given, text = WRONG[name]
    async with opened(tmp_path, mode) as store:
        for call in handed(store, given):
            with refusal(text):
                if inspect.isawaitable(called := call()):
                    await called


@pytest.mark.parametrize("name", WRONG)
def test_threads_are_told_in_words_what_cannot_be_shown(tmp_path: Path, name: str) -> None:
    given, text = WRONG[name]
    with aiodq.sync.open(tmp_path) as store:
        store.topic("t").put(b"x")
        for call in handed(store, given):
            with refusal(text):
                call()


@pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
async def test_bytes_are_no_list_of_messages_however_they_are_given(tmp_path: Path, mode: Any) -> None:
    async with opened(tmp_path, mode) as store:
        channel: Any = store.topic("t").channel("c")
        for given in (memoryview(b"abcdef").cast("B", (2, 3)), released(), memoryview(b""), b"", ""):
            with refusal("ack_many takes a list of messages, not"):
                channel.ack_many(given)
            with refusal("ack_many takes a list of messages, not"):
                await in_transaction(store, given, several=True)
            with refusal("tags is a list of texts, not"):
                Any_.ChannelOptions(tags=given)


async def test_a_double_of_a_message_is_no_message(store: aiodq.Store) -> None:
    for double in (Mock(), MagicMock(), AsyncMock()):
        with refusal("what is acked is a message, not <.*Mock id"):
            await in_transaction(store, double, several=False)


async def test_the_name_of_one_topic_is_no_list_of_names(tmp_path: Path) -> None:
    async with opened(tmp_path, "exclusive") as store:
        await store.topic("others").put(b"x")
        reader: Any = aiodq.open_reader(tmp_path)
        with refusal("topics is a list of names, not 't'"):
            reader.stats("t")
        assert list(reader.stats(iter(["t", "u"])).topics) == ["t"]
        columns = reader.topic("t").to_arrow(columns=(name for name in ("body", "offset"))).column_names
        assert columns == ["offset", "body"]


class Unknown(aiodq.Reject):
    """A rejection that says in its own way what it is about."""

    def __init__(self, customer: int) -> None:
        self.customer = customer


class Busy(aiodq.Retry):
    """A wait that is set in its own way."""

    def __init__(self, delay: Any = None) -> None:
        if delay is not None:
            self.delay = delay


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_what_a_handler_makes_of_a_retry_or_a_reject_ends_no_consumer(tmp_path: Path, mode: Any) -> None:
    async with opened(tmp_path, mode) as store:
        options = aiodq.ChannelOptions(dead_letter="dead", max_attempts=2, backoff=aiodq.Backoff(first=0.01))
        jobs, dead = store.queue("jobs", options), store.queue("dead")
        raised = [Unknown(7), Busy(), Busy("soon"), Busy(-5)]
        await jobs.put_many([b"%d" % number for number in range(len(raised))])

        async def refuse(message: aiodq.Message) -> None:
            raise raised[int(message.body)]

        working = asyncio.create_task(jobs.consume(refuse))
        letters = [await dead.get(timeout=20) for _ in raised]
        await jobs.stop()
        await working
        told = {int(letter.body): letter.headers for letter in letters}
        assert told[0]["aiodq-reason"] == "rejected"
        assert [told[number]["aiodq-reason"] for number in (1, 2, 3)] == ["delivered 2 times"] * 3
        assert "aiodq-error" not in told[1]
        assert "delay is a number of seconds or a timedelta, not 'soon'" in told[2]["aiodq-error"]
        assert "delay is a duration from 0" in told[3]["aiodq-error"]
