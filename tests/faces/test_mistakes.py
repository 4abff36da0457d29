"""The 53 mistakes that are typical of who comes from asyncio's queues, and what each of them is told.

Every text says what was given, what is expected, and how to write it. None is an accident: an error of Python's own
from somewhere inside, such as `'>' not supported between instances of 'str' and 'int'`.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import math
import os
import threading
from collections.abc import Callable  # noqa: TC003 - a named tuple has to find it
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import aiodq
from tests.channels.support import Machine, counts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

Options: Any = aiodq.StoreOptions
ChannelOptions: Any = aiodq.ChannelOptions
Retention: Any = aiodq.Retention
Backoff: Any = aiodq.Backoff

NAIVE = datetime(2026, 1, 31)  # noqa: DTZ001 - that is the mistake


class Desk:
    """What a mistake is made with. Without types, as who makes it has none.

    Attributes:
        path: of a store that is open.
        store, topic, jobs: the store, its topic `jobs`, and that as a queue.
        message, settled, seen: a message in flight, one that was acked, and one that was only looked at.
        transaction: one that was not entered.
    """

    def __init__(self, path: str, store: aiodq.Store, jobs: aiodq.Queue, messages: list[aiodq.Message]) -> None:
        self.path = path
        self.store: Any = store
        self.jobs: Any = jobs
        self.topic: Any = jobs.topic
        self.message: Any
        self.settled: Any
        self.seen: Any
        self.message, self.settled, self.seen = messages
        self.transaction: Any = store.transaction()
        self.open: Any = aiodq.open
        self.open_queue: Any = aiodq.open_queue


class Mistake(NamedTuple):
    """One of them.

    Attributes:
        what: in words.
        made: makes it; what it returns is awaited where it can be.
        error: what is raised.
        text: what is said, whole but for `{path}`.
    """

    what: str
    made: Callable[[Desk], object]
    error: type[Exception]
    text: str


async def loop_over(things: Any) -> None:
    async for _ in things:
        pass


def with_(thing: Any) -> None:
    with thing:
        pass


async def handler(_: aiodq.Message) -> None: ...


FUNCTION: Any = handler
"""Where its coroutine is meant."""


def coroutine() -> object:
    """Return what `handler(message)` is, where `handler` is meant; nobody shall complain that it was not awaited."""
    nothing: Any = None
    called: Any = handler(nothing)
    called.close()
    return called


async def in_a_block(desk: Desk, wrong: Callable[[Any], object]) -> None:
    async with desk.store.transaction() as tx:
        wrong(tx)


async def in_a_thread(call: Callable[[], Any]) -> None:
    """Call it in another thread, and raise here what it raised there."""
    raised: list[Exception] = []

    def work() -> None:
        try:
            result = call()
            if inspect.iscoroutine(result):
                result.send(None)
        except Exception as error:  # noqa: BLE001 - it is raised again
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise raised[0]


ERROR = aiodq.InvalidOptionError
TYPE = aiodq.InvalidOptionTypeError
MESSAGE = aiodq.InvalidMessageTypeError
SPAN = "is a number of seconds or a timedelta, not"
POSITION = "is 'earliest', 'latest', an offset (int) or a datetime with a time zone, not"
NAME = "1 to 64 of letters, digits, '.', '_' and '-', optionally ending '#ephemeral'"
ZONE = "write datetime.now(timezone.utc), or moment.astimezone() for one of local time"

OPENING = [
    Mistake(
        "a forgotten await of a store",
        lambda desk: desk.open("{path}").topic("jobs"),
        aiodq.NotAwaitedError,
        "aiodq.open('{cwd}/{path}') is not open yet: write \"async with aiodq.open('{cwd}/{path}') as store:\" or "
        "\"store = await aiodq.open('{cwd}/{path}')\", and then store.topic",
    ),
    Mistake(
        "a forgotten await of a queue",
        lambda desk: desk.open_queue("{path}").put(b"x"),
        aiodq.NotAwaitedError,
        "aiodq.open_queue('{cwd}/{path}') is not open yet: write \"async with aiodq.open_queue('{cwd}/{path}') as "
        'queue:" or "queue = await aiodq.open_queue(\'{cwd}/{path}\')", and then queue.put',
    ),
    Mistake(
        "with instead of async with",
        lambda desk: with_(desk.jobs),
        aiodq.NotAwaitedError,
        'a Queue is for "async with", not for "with": write "async with", in an async def',
    ),
    Mistake(
        "for instead of async for",
        lambda desk: list(desk.jobs),
        aiodq.NotAwaitedError,
        'a Queue is for "async for", not for "for": write "async for message in ..."',
    ),
    Mistake(
        "a path that is none",
        lambda desk: desk.open(5),
        TYPE,
        "path is the name of a directory (str or os.PathLike), not 5 (int): write 'data/jobs'",
    ),
    Mistake(
        "a path for a shell",
        lambda desk: desk.open("~/jobs"),
        ERROR,
        "the path '~/jobs' begins with '~', which only a shell replaces: write os.path.expanduser('~/jobs'), or "
        "'./~/jobs' for a directory of that name",
    ),
    Mistake(
        "two opens in one process",
        lambda desk: desk.open(desk.path),
        aiodq.StoreLockedError,
        "the store is open in process {pid} on {host}, which is this one: use that object, close it first "
        "(await store.aclose(), in aiodq.sync store.close()), or name mode='shared' each time it is opened [{store}]",
    ),
    Mistake(
        "a misspelt path that must be there",
        lambda desk: desk.open(desk.path + "-2", create=False),
        aiodq.StoreNotFoundError,
        "there is nothing under this path, so no store is opened and, with create=False, none is made; is its volume "
        "mounted? [{store}-2]",
    ),
    Mistake(
        "options of a channel for a store",
        lambda desk: desk.open(desk.path, ChannelOptions()),
        TYPE,
        "what a store or topic takes is StoreOptions, not ChannelOptions(...): how a channel delivers is given to "
        "topic.channel(name, options), store.queue(name, channel=...)",
    ),
    Mistake(
        "options as a dict",
        lambda desk: desk.open(desk.path, {"sync": "os"}),
        TYPE,
        "what a store or topic takes is StoreOptions, not {'sync': 'os'} (dict): write aiodq.open(path, "
        "StoreOptions(sync='always'))",
    ),
    Mistake(
        "a function instead of its coroutine",
        lambda _: aiodq.run(FUNCTION),
        TYPE,
        f"aiodq.run takes a coroutine, not {handler!r:.100}: write aiodq.run(handler())",
    ),
]

OPTIONS = [
    Mistake(
        "a word for a policy",
        lambda _: Options(retention="keep"),
        TYPE,
        "retention is a Retention, not 'keep' (str): write retention=Retention(consumed='keep')",
    ),
    Mistake(
        "a number for a policy",
        lambda _: ChannelOptions(backoff=5),
        TYPE,
        "backoff is a Backoff, not 5 (int): write backoff=Backoff(first=5)",
    ),
    Mistake(
        "a wait of three thousand years",
        lambda _: Backoff(first=1e11),
        ERROR,
        "first is a duration from 0 to 3162240000 seconds, not 100000000000.0: write first=30 or "
        "first=timedelta(seconds=30)",
    ),
    Mistake(
        "one tag for several",
        lambda _: ChannelOptions(tags="red"),
        TYPE,
        "tags is a list of texts, not 'red' (str): write tags=['red']",
    ),
    Mistake(
        "tags that are no texts",
        lambda _: ChannelOptions(tags=[1]),
        TYPE,
        "tags is a list of texts, not [1] (list): write tags=['red', 'pink']",
    ),
    Mistake(
        "half a message",
        lambda _: ChannelOptions(max_in_flight=2.5),
        TYPE,
        "max_in_flight is a whole number of at least 1, not 2.5 (float): write max_in_flight=1000",
    ),
    Mistake(
        "no bound by infinity",
        lambda _: Options(segment_bytes=math.inf),
        TYPE,
        "segment_bytes is a whole number of at least 1, not inf (float): write segment_bytes=104857600",
    ),
    Mistake(
        "a number read from the environment",
        lambda _: ChannelOptions(visibility_timeout="60"),
        TYPE,
        f"visibility_timeout {SPAN} '60' (str): write visibility_timeout=30 or "
        "visibility_timeout=timedelta(seconds=30)",
    ),
    Mistake(
        "no timeout by zero",
        lambda _: ChannelOptions(visibility_timeout=0),
        ERROR,
        "visibility_timeout is a positive duration, in seconds or as a timedelta, not 0: write "
        "visibility_timeout=30 or visibility_timeout=timedelta(seconds=30)",
    ),
    Mistake(
        "asyncio's maxsize of zero",
        lambda _: Options(max_messages=0),
        ERROR,
        "max_messages is a whole number of at least 1, not 0: write max_messages=10000",
    ),
    Mistake(
        "a policy that there is not",
        lambda _: Options(overflow="drop"),
        ERROR,
        "overflow is 'block', 'reject' or 'drop_oldest', not 'drop': write overflow='block'",
    ),
    Mistake(
        "a switch that is a choice",
        lambda _: Options(sync=True),
        TYPE,
        "sync is 'always', 'interval' or 'os', not True (bool): write sync='always'",
    ),
    Mistake(
        "a choice that is a switch",
        lambda _: ChannelOptions(auto_ack="yes"),
        TYPE,
        "auto_ack is True or False, not 'yes' (str): write auto_ack=True",
    ),
    Mistake(
        "a duration in words",
        lambda _: Retention(max_age="7d"),
        TYPE,
        f"max_age {SPAN} '7d' (str): write max_age=30 or max_age=timedelta(seconds=30)",
    ),
    Mistake(
        "a channel's option for a store",
        lambda _: Options(max_in_flight=5),
        TYPE,
        "StoreOptions has no option 'max_in_flight': it is one of ChannelOptions, write "
        "ChannelOptions(max_in_flight=...)",
    ),
    Mistake(
        "a misspelt option",
        lambda _: Options(segment_size=5),
        TYPE,
        "StoreOptions has no option 'segment_size': write segment_bytes=...",
    ),
    Mistake(
        "options without their names",
        lambda _: Options("os"),
        TYPE,
        "StoreOptions takes its options by name, not 'os': write StoreOptions(sync=...)",
    ),
    Mistake(
        "a start without a zone",
        lambda _: ChannelOptions(start=NAIVE),
        ERROR,
        f"start is a datetime with a time zone, not {NAIVE!r}: {ZONE}",
    ),
    Mistake(
        "a topic for its name",
        lambda _: ChannelOptions(dead_letter=5),
        TYPE,
        "dead_letter is the name of a topic, not 5 (int): write dead_letter='jobs-dead'",
    ),
]

PLACES = [
    Mistake(
        "a topic as its own dead-letter topic",
        lambda desk: desk.store.queue("jobs", ChannelOptions(dead_letter="jobs")),
        ERROR,
        "dead_letter is the name of another topic, not 'jobs' itself: write dead_letter='jobs-dead'",
    ),
    Mistake(
        "options of a store for a channel",
        lambda desk: desk.topic.channel("audit", Options()),
        TYPE,
        "what a channel takes is ChannelOptions, not StoreOptions(...): how a topic keeps messages is given to "
        "store.topic(name, options), store.queue(…, options=...)",
    ),
    Mistake(
        "a name with a slash",
        lambda desk: desk.store.topic("shop/orders"),
        aiodq.InvalidNameError,
        f"'shop/orders' is no name for a topic: {NAME}",
    ),
    Mistake(
        "a name that is none",
        lambda desk: desk.store.queue(None),
        aiodq.InvalidNameError,
        f"None (NoneType) is no name for a topic: {NAME}",
    ),
]


class Cells(ctypes.Structure):
    """A buffer that is neither bytes nor an array."""

    def __repr__(self) -> str:
        return "<cells>"


MESSAGES = [
    Mistake(
        "a text as a body",
        lambda desk: desk.jobs.put("resize cat.png"),
        MESSAGE,
        "a message's body is bytes-like, not 'resize cat.png' (str): write put(text.encode())",
    ),
    Mistake(
        "an object as a body",
        lambda desk: desk.jobs.put({"cat": 1}),
        MESSAGE,
        "a message's body is bytes-like, not {'cat': 1} (dict): write put(json.dumps(value).encode())",
    ),
    Mistake(
        "another kind of buffer as a body",
        lambda desk: desk.jobs.put(Cells()),
        MESSAGE,
        "a message's body is bytes-like, not <cells> (Cells): write put(bytes(value))",
    ),
    Mistake(
        "one body for several",
        lambda desk: desk.jobs.put_many(b"abc"),
        MESSAGE,
        "put_many takes a list of bodies, not b'abc' (bytes): write put_many([body, ...])",
    ),
    Mistake(
        "a number as a tag",
        lambda desk: desk.jobs.put(b"x", tag=5),
        MESSAGE,
        "a tag is text of up to 65536 bytes, or None, not 5 (int): write tag='red'",
    ),
    Mistake(
        "a text as a key",
        lambda desk: desk.jobs.put(b"x", key="customer"),
        MESSAGE,
        "a key is up to 1048576 bytes, or None, not 'customer' (str): write key=b'customer-17', key=text.encode()",
    ),
    Mistake(
        "a header that is no text",
        lambda desk: desk.jobs.put_nowait(b"x", headers={"attempt": 3}),
        MESSAGE,
        "headers are a mapping of text to text, not 3 (int): write headers={'attempt': str(3)}",
    ),
    Mistake(
        "a moment for a delay",
        lambda desk: desk.jobs.put(b"x", delay=date(2026, 1, 31)),
        MESSAGE,
        f"delay {SPAN} {date(2026, 1, 31)!r} (date): write delay=30 or delay=timedelta(seconds=30)",
    ),
    Mistake(
        "a delay into the past",
        lambda desk: desk.message.nack(timedelta(seconds=-1)),
        aiodq.InvalidMessageError,
        f"delay is a duration from 0 to 3162240000 seconds, not {timedelta(seconds=-1)!r}: write delay=30 or "
        "delay=timedelta(seconds=30)",
    ),
]

GETTING = [
    Mistake(
        "queue.Queue's block=False",
        lambda desk: desk.jobs.get(False),
        TYPE,
        f"timeout {SPAN} False (bool): write timeout=30 or timeout=timedelta(seconds=30)",
    ),
    Mistake(
        "a number of messages as a text",
        lambda desk: desk.jobs.get_many("10"),
        TYPE,
        "max_items is a whole number of at least 1, not '10' (str): write max_items=100",
    ),
    Mistake(
        "a handler that was called",
        lambda desk: desk.jobs.consume(coroutine()),
        TYPE,
        "the handler is a coroutine: give the function, consume(handler), not what it returned, consume(handler(…))",
    ),
    Mistake(
        "ack after ack",
        lambda desk: desk.settled.ack(),
        aiodq.AlreadySettledError,
        "message 0 of 'jobs' was settled before: ack, nack, reject or the end of `async with message` settles it, once",
    ),
    Mistake(
        "task_done as often as one likes",
        lambda desk: desk.jobs.task_done(desk.settled.body),
        TYPE,
        "task_done takes the message that get() gave, not b'0' (bytes): write task_done(message), or task_done() for "
        "what this task got last",
    ),
    Mistake(
        "seconds since 1970 as a place",
        lambda desk: desk.jobs.seek(1.75e9),
        TYPE,
        f"position {POSITION} 1750000000.0 (float): write datetime.fromtimestamp(seconds, timezone.utc) for a time, "
        "int(offset) for an offset",
    ),
    Mistake(
        "an offset from a command line",
        lambda desk: loop_over(desk.jobs.scan("1")),
        TYPE,
        "start is an offset, a whole number, not '1' (str): write start=0, or what put() returned",
    ),
    Mistake(
        "a transaction without its block",
        lambda desk: desk.transaction.put("jobs", b"x"),
        aiodq.WrongContextError,
        "a transaction is used inside its `async with` block, and once",
    ),
    Mistake(
        "the body acked, not the message",
        lambda desk: in_a_block(desk, lambda tx: tx.ack(desk.message.body)),
        TYPE,
        "what is acked is a message, not b'1' (bytes): write tx.ack(message) with what `await channel.get()` gave",
    ),
    Mistake(
        "a put from another thread",
        lambda desk: in_a_thread(lambda: desk.jobs.put(b"x")),
        aiodq.WrongContextError,
        "this store is to be used on the event loop that opened it, not from another thread or without a loop: have a "
        "web framework call an `async def`, as it calls plain functions in threads; from a thread of your own, "
        "asyncio.run_coroutine_threadsafe(topic.put(body), loop).result()",
    ),
    Mistake(
        "a plain function that a web framework calls for the queue of a request",
        lambda desk: in_a_thread(lambda: desk.store.queue("jobs")),
        aiodq.WrongContextError,
        "this store is to be used on the event loop that opened it, not from another thread or without a loop: have a "
        "web framework call an `async def`, as it calls plain functions in threads; from a thread of your own, "
        "asyncio.run_coroutine_threadsafe(topic.put(body), loop).result()",
    ),
    Mistake(
        "an opening under trio",
        lambda desk: in_a_thread(desk.open(desk.path + "-3")._open),
        aiodq.WrongContextError,
        "no asyncio event loop is running here: open a store within aiodq.run(main()) or asyncio.run(main()); trio is "
        "not supported",
    ),
]

MISTAKES = [*OPENING, *OPTIONS, *PLACES, *MESSAGES, *GETTING]


@asynccontextmanager
async def desk_at(path: Path) -> AsyncIterator[Desk]:
    async with aiodq.open(path, aiodq.StoreOptions(sync="os", retention=aiodq.Retention(consumed="keep"))) as store:
        jobs = store.queue("jobs")
        await jobs.put_many([b"0", b"1", b"2"])
        settled = await jobs.get()
        await settled.ack()
        yield Desk(str(path), store, jobs, [await jobs.get(), settled, await jobs.read(0)])


def test_there_are_as_many_as_there_are_said_to_be() -> None:
    assert len(MISTAKES) == 55
    assert len({mistake.what for mistake in MISTAKES}) == 55


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what.replace(" ", "-"))
async def test_a_mistake_is_told_in_words_and_does_nothing(mistake: Mistake, tmp_path: Path) -> None:
    place = tmp_path.resolve() / "store"
    async with desk_at(place) as desk:
        with pytest.raises(mistake.error) as caught:
            result = mistake.made(desk)
            if inspect.isawaitable(result):
                await asyncio.wait_for(result, 20)
        assert isinstance(caught.value, aiodq.AiodqError)
        said = str(caught.value)
        known = {"{cwd}": os.getcwd(), "{store}": str(place), "{pid}": str(os.getpid()), "{host}": os.uname().nodename}
        text = mistake.text
        for name, value in known.items():
            text = text.replace(name, value)
        assert said == text
        assert counts(desk.jobs) == (1, 1, 0)
        assert desk.topic.end_offset == 3
        assert desk.store.topics() == ["jobs"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["store"]


async def test_a_store_is_not_for_the_child_of_a_fork(machine: Machine) -> None:
    async with machine.store() as store:
        home = store._store_engine.home
        parents = home.loop, home.thread
        store._store_engine.after_fork()
        with pytest.raises(aiodq.WrongContextError, match=r"opened before a fork.*: open one in the child"):
            await store.queue("jobs").put(b"x")
        (home.loop, home.thread), home.forked = parents, False


async def test_a_datetime_in_utc_is_what_the_texts_propose(machine: Machine) -> None:
    async with machine.jobs() as jobs:
        await jobs.put(b"x")
        assert await jobs.offset_at(datetime.now(UTC) + timedelta(days=36_500)) == 1
        assert await jobs.offset_at(NAIVE.astimezone().replace(year=1990)) == 0
