"""`aiodq get`: takes messages from a channel, and acks them once they were written."""

import asyncio
import json as json_text
import os
import select
import stat
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

from cyclopts import Parameter, validators

from aiodq.channel import Channel
from aiodq.cli.arguments import Place, whole
from aiodq.cli.exits import DONE, CommandError, complain
from aiodq.cli.loop import Aside, run_command
from aiodq.cli.names import known_channel, known_topic
from aiodq.cli.opening import open_store
from aiodq.cli.output import check_read
from aiodq.cli.show import body_form, message_fields
from aiodq.engine.queue_errors import QueueEmpty
from aiodq.errors import StoreLockedError
from aiodq.message import Message
from aiodq.names import check_name
from aiodq.opening import open_reader
from aiodq.shared.handles.shared_channel import SharedChannel
from aiodq.storage.offline.store_reader import TopicReader

__all__ = ["get", "was_read"]

_BATCH_MESSAGES: Final = 500
_BATCH_BYTES: Final = 1 << 20
_ALONE: Final = 32
"""Messages that are handed out one by one before those in batches, where a pipe's other end may take only a few."""

_READ: Final = 1.0
"""Seconds for the other end of a pipe to read what was written; who takes longer is no `head`."""

_FIRST_LOOK: Final = 0.0001
_LONGEST_LOOK: Final = 0.01
"""Seconds between two looks at whether it has: the first pause, and the longest."""

_POLL: Final = 0.2
"""Seconds between two looks at whether there is more."""

_LOOK: Final = 1.0
"""Seconds between two looks at the channel's figures, which cost more where many messages have a delay."""

_SHARE: Final = 10
"""How many times as long as such a look the pause after it is at least."""

_OTHERS: Final = 1.0
"""Seconds after which what was ready has gone to others."""


def get(
    store: Place,
    topic: str,
    /,
    *,
    channel: str = "default",
    number: Annotated[int | None, Parameter(name="-n", converter=whole, validator=validators.Number(gte=0))] = None,
    follow: bool = False,
    json: bool = False,
) -> int:
    """Take messages from a channel, write each and a newline to standard output, and ack it.

    A message is acked once it was written, so messages that are interrupted in between, or by a closed pipe, are
    redelivered by the next get. The other end of a pipe gets a second to read it. A command like `head -100` may read
    more than it shows; -n 100 takes no more. Without -n and --follow: everything that is ready. Missing topics and
    channels are not created: use put, or channels --create.

    Args:
        store: the store's directory.
        topic: the topic's name.
        channel: the channel's name.
        number: the most messages to take.
        follow: wait for more, and for the topic and the channel. In between, other processes can open the store.
        json: write each message as a line of JSON, with its offset, time, tag, key and headers.
    """
    check_name(topic)
    check_name(channel, "channel")
    form = _as_json if json else _as_lines()
    return run_command(_Getting(store, topic, channel, number, form).run(follow=follow))


def _as_lines() -> Callable[[Message], bytes]:
    form = body_form()
    return lambda message: form(message.body)


def _as_json(message: Message) -> bytes:
    fields = {"attempts": message.attempts, **message_fields(message)}
    return json_text.dumps(fields).encode() + b"\n"


class _Getting:
    """One run."""

    def __init__(
        self, store: str, topic: str, channel: str, number: int | None, form: Callable[[Message], bytes]
    ) -> None:
        self._store = store
        self._topic = topic
        self._channel = channel
        self._left = sys.maxsize if number is None else number
        self._form = form
        self._watched = _is_into_pipe()
        self._handed = 0
        self._seen = 0
        self._figures: tuple[int, ...] | None = None
        self._told: set[str] = set()

    async def run(self, *, follow: bool) -> int:
        sys.stdout.flush()
        with Aside() as aside:
            await self._until_there(wait=follow)
            while True:
                if await self._drained(aside, wait=follow) and not follow:
                    return DONE
                if not self._left:
                    return DONE
                await self._until_more()

    async def _drained(self, aside: Aside, *, wait: bool) -> bool:
        """Take messages until none is ready; return False if another process owns the store and this may wait."""
        try:
            async with open_store(self._store) as opened:
                topic = opened.topic(self._topic)
                channel = topic.channel(self._channel)
                await topic.settle_in()
                while self._left and (messages := await _ready(channel, self._most())):
                    await self._hand_out(aside, messages)
                self._seen = topic.end_offset
                if self._left and channel.paused:
                    self._tell_or_raise(self._paused(), "paused", wait=wait)
        except StoreLockedError as error:
            self._tell_or_raise(error, "owned", wait=wait)
            self._figures = None  # what has changed was not looked at
            return False
        return True

    def _paused(self) -> CommandError:
        what = f"channel {self._channel!r} of {self._topic!r} is paused"
        resume = f"aiodq resume {self._store} {self._topic}"
        return CommandError(f"{what}: {resume} --channel {self._channel} resumes it, {resume} its topic")

    async def _until_there(self, *, wait: bool) -> None:
        while True:
            try:
                known_channel(self._store, known_topic(self._store, self._topic), self._channel)
            except CommandError as error:
                self._tell_or_raise(error, "missing", wait=wait)
            else:
                return
            await _pause()

    def _tell_or_raise(self, error: Exception, what: str, *, wait: bool) -> None:
        """Raise an error; or, if the command waits for it to pass, tell it the first time."""
        if not wait:
            raise error
        if what not in self._told:
            self._told.add(what)
            complain(f"waiting: {error}")

    def _most(self) -> int:
        """Return how many messages are taken next."""
        if not self._watched:
            return self._left
        return min(self._left, 1 if self._handed < _ALONE else self._handed)

    async def _hand_out(self, aside: Aside, messages: list[Message]) -> None:
        data = b"".join(map(self._form, messages))
        # Not `sys.stdout`: acked messages could still be in its buffer, and not in the pipe.
        await aside.call(lambda: _write_all(sys.stdout.fileno(), data))
        if self._watched:
            self._watched = await aside.call(lambda: was_read(sys.stdout.fileno()))
        for message in messages[:-1]:
            message.ack_nowait()
        await messages[-1].ack()
        self._left -= len(messages)
        self._handed += len(messages)

    async def _until_more(self) -> None:
        """Wait until the topic has grown, or the channel has changed: something is due, came back, or was sought.

        Raises:
            CommandError: the channel was deleted.
            StoreNotFoundError: the topic was.
        """
        topic = open_reader(self._store).topic(self._topic)
        look = time.monotonic() + _LOOK
        while topic.end_offset <= self._seen:
            await _pause()
            topic.refresh()
            if (began := time.monotonic()) >= look:
                before, self._figures = self._figures, await asyncio.to_thread(self._look, topic)
                if self._figures != before:
                    break
                now = time.monotonic()
                look = now + max(_LOOK, _SHARE * (now - began))
        # The process that put it may still own the store.
        await _pause()
        topic.refresh()
        known_channel(self._store, topic, self._channel)

    def _look(self, topic: TopicReader) -> tuple[int, ...]:
        """Return what changes whenever another message of the channel may be ready; empty if the channel is gone."""
        one = topic.stats().channels.get(self._channel)
        return () if one is None else (one.floor, one.depth, one.ready, one.in_flight or 0, one.returned, one.paused)


async def _pause() -> None:
    """Wait for the next look.

    Raises:
        BrokenPipeError: nobody reads the output any more.
    """
    await asyncio.sleep(_POLL)
    check_read()


async def _ready(channel: Channel, limit: int) -> list[Message]:
    """Take messages that are ready, as many as may be in memory at once."""
    if isinstance(channel, SharedChannel):
        return await _ready_elsewhere(channel, min(limit, _BATCH_MESSAGES))
    messages: list[Message] = []
    size = 0
    with suppress(QueueEmpty):
        while len(messages) < min(limit, _BATCH_MESSAGES) and size < _BATCH_BYTES:
            messages.append(channel.get_nowait())
            size += len(messages[-1].body)
    return messages


async def _ready_elsewhere(channel: SharedChannel, limit: int) -> list[Message]:
    """Do as `_ready` if another process owns the store: take what it reports as ready, unless others are faster."""
    await channel.refresh()
    with suppress(TimeoutError):
        async with asyncio.timeout(_OTHERS):
            if ready := channel.qsize():
                return await channel.get_many(min(limit, ready))
    return []


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _is_into_pipe() -> bool:
    """Return whether standard output is a pipe that can be looked at."""
    try:
        mode = os.fstat(sys.stdout.fileno()).st_mode
    except OSError:
        return False  # nothing of the system's, which the first write is refused for
    return stat.S_ISFIFO(mode) and sys.platform != "win32"


def was_read(descriptor: int) -> bool:
    """Wait briefly until the other end of a pipe has read everything written; return whether it has.

    Raises:
        BrokenPipeError: it was closed before it had read everything.
    """
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are told in any case
    until, pause = time.monotonic() + _READ, _FIRST_LOOK
    while _unread(descriptor):
        if poll.poll(0):
            raise BrokenPipeError
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_LOOK)
    return True


def _unread(descriptor: int) -> int:
    """Return how many bytes a pipe holds; 0 if that is unknown."""
    import fcntl  # noqa: PLC0415 - not on Windows
    import termios  # noqa: PLC0415 - as above

    number = array("i", [0])
    with suppress(OSError):
        fcntl.ioctl(descriptor, termios.FIONREAD, number)
    return number[0]
