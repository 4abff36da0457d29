"""The real queue, on real files, against a model that is little more than a deque: any sequence, restarts, crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import aiodq
from aiodq.testing import WatchedFileSystem
from tests.queue.support import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiodq.options import SyncPolicy

MAX_IN_FLIGHT = 5


class QueueMachine(RuleBasedStateMachine):
    """The model.

    `log` is every message ever put, by offset. `open` are the offsets not settled, `flight` those handed out. `unsure`
    are those acked without waiting, and `requeued` those nacked: whether that survives a crash is not known.
    """

    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="aiodq-machine-"))
        self.runner = asyncio.Runner(loop_factory=type(self).loop_factory)
        self.lives = 0

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(PATIENCE):
                return await coroutine

        return self.runner.run(bounded())

    @initialize(
        policy=st.sampled_from(["always", "interval", "os"]),
        segment_bytes=st.sampled_from([100, 200, 700, 100_000]),
    )
    def begin(self, policy: SyncPolicy, segment_bytes: int) -> None:
        self.options = aiodq.StoreOptions(
            sync=policy,
            sync_every=4,
            sync_interval=3600,
            segment_bytes=segment_bytes,
            memory_bytes=1 << 16,
        )
        self.path = self.root / "0"
        self.fs = WatchedFileSystem()
        self.log: list[bytes] = []
        self.open: set[int] = set()
        self.flight: dict[int, aiodq.Message] = {}
        self.attempts: dict[int, int] = {}
        self.unsure: set[int] = set()
        self.requeued: set[int] = set()
        self.old: list[aiodq.Message] = []
        self.start()

    def start(self) -> None:
        opening = aiodq.open_queue(
            self.path, self.options, aiodq.ChannelOptions(max_in_flight=MAX_IN_FLIGHT), fs=self.fs
        )

        async def run() -> aiodq.Queue:
            return await opening

        self.queue: aiodq.Queue = self.run(run())

    @property
    def ready(self) -> list[int]:
        return sorted(self.open - set(self.flight))

    def settle(self, offset: int) -> None:
        self.open.discard(offset)
        self.flight.pop(offset, None)
        self.attempts.pop(offset, None)

    # --- putting

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4))
    def put(self, sizes: list[int]) -> None:
        async def run() -> list[int]:
            return [await self.queue.put(body) for body in bodies]

        bodies = self.bodies(sizes)
        assert self.run(run()) == self.note(bodies)

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6))
    def put_at_once(self, sizes: list[int]) -> None:
        async def run() -> list[int]:
            return await asyncio.gather(*(self.queue.put(body) for body in bodies))

        bodies = self.bodies(sizes)
        assert self.run(run()) == self.note(bodies)

    @rule(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6))
    def put_many(self, sizes: list[int]) -> None:
        bodies = self.bodies(sizes)
        assert list(self.run(self.queue.put_many(bodies))) == self.note(bodies)

    def bodies(self, sizes: list[int]) -> list[bytes]:
        return [b"%d:" % number + b"x" * size for number, size in enumerate(sizes, len(self.log))]

    def note(self, bodies: list[bytes]) -> list[int]:
        offsets = list(range(len(self.log), len(self.log) + len(bodies)))
        self.log += bodies
        self.open |= set(offsets)
        return offsets

    # --- getting

    @rule(count=st.integers(1, 4), how=st.sampled_from(["get", "get_nowait", "get_many"]))
    def get(self, count: int, how: str) -> None:
        async def run() -> list[aiodq.Message]:
            if how == "get":
                return [await self.queue.get() for _ in range(count)]
            if how == "get_nowait":
                return [self.queue.get_nowait() for _ in range(count)]
            return await self.queue.get_many(count)

        count = min(count, len(self.ready), MAX_IN_FLIGHT - len(self.flight))
        if not count:
            with pytest.raises(aiodq.QueueEmpty):
                self.run(self.get_nowait())
            return
        expected = self.ready[:count]
        found = self.run(run())
        assert [message.offset for message in found] == expected
        for message in found:
            assert message.body == self.log[message.offset]
            assert message.attempts == self.attempts.get(message.offset, 0) + 1
            self.flight[message.offset] = message

    async def get_nowait(self) -> aiodq.Message:
        return self.queue.get_nowait()

    @rule()
    def peek(self) -> None:
        found = self.run(self.queue.peek())
        assert (None if found is None else found.offset) == (self.ready[0] if self.ready else None)

    # --- settling

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), waited=st.booleans())
    def ack(self, data: st.DataObject, waited: bool) -> None:
        async def run() -> None:
            if waited:
                await message.ack()
            else:
                message.ack_nowait()

        message = self.drawn(data)
        self.run(run())
        self.settle(message.offset)
        if waited:
            self.all_is_written()  # everything settled before, with it
        else:
            self.unsure.add(message.offset)

    def all_is_written(self) -> None:
        self.unsure.clear()
        self.requeued.clear()

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), counted=st.booleans())
    def nack(self, data: st.DataObject, counted: bool) -> None:
        message = self.drawn(data)
        self.run(message.nack(count_attempt=counted))
        del self.flight[message.offset]
        self.attempts[message.offset] = message.attempts - (not counted)
        self.requeued.add(message.offset)

    def drawn(self, data: st.DataObject) -> aiodq.Message:
        message = self.flight[data.draw(st.sampled_from(sorted(self.flight)))]
        self.old.append(message)
        return message

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(self.old))
        with pytest.raises((aiodq.DeliveryError, aiodq.QueueShutDown)):
            self.run(message.ack())

    @rule()
    def purge(self) -> None:
        assert self.run(self.queue.purge()) == len(self.open)
        self.old += self.flight.values()
        for offset in sorted(self.open):
            self.settle(offset)
        self.all_is_written()

    @rule()
    def sync(self) -> None:
        self.run(self.queue.sync())
        assert self.queue.durable_offset == len(self.log)
        self.all_is_written()

    # --- looking

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        async def scan() -> list[aiodq.Message]:
            return [message async for message in self.queue.scan(reverse=reverse)]

        reverse = data.draw(st.booleans())
        begin = self.queue.begin_offset
        found = self.run(scan())
        if reverse:
            found.reverse()
        offsets = [message.offset for message in found]
        assert offsets == sorted(set(offsets))
        assert set(offsets) >= {offset for offset in self.open if offset >= begin}
        assert all(message.body == self.log[message.offset] for message in found)
        assert min(self.open, default=begin) >= begin

    # --- ends

    @rule()
    def reopen(self) -> None:
        self.run(self.queue.aclose())
        assert self.fs.open_files == 0
        self.all_is_written()
        self.forget()
        self.start()

    @rule()
    def crash(self) -> None:
        """Go on with an image of the directory, while the owner still lives."""
        self.lives += 1
        image = self.root / str(self.lives)
        with self.fs.frozen():
            shutil.copytree(self.path, image)
        self.run(self.queue.aclose())
        shutil.rmtree(self.path)
        self.path = image
        self.forget()
        self.start()
        # Acks that nobody waited for may be lost, in any combination; then those come again, and nothing else.
        again = self.queue.depth - len(self.open)
        assert 0 <= again <= len(self.unsure)
        if self.unsure or self.requeued:
            self.run(self.learn_what_survived())

    async def learn_what_survived(self) -> None:
        open_now = set()
        held = []
        self.queue._channel_engine.configure(aiodq.ChannelOptions(max_in_flight=10**6))  # a look at all of it
        for _ in range(self.queue.depth):
            message = self.queue.get_nowait()
            open_now.add(message.offset)
            held.append(message)
        for message in held:
            message.release()
        self.queue._channel_engine.configure(aiodq.ChannelOptions(max_in_flight=MAX_IN_FLIGHT))
        assert self.open <= open_now <= self.open | self.unsure
        for message in held:
            if message.offset in self.requeued:
                assert message.attempts <= self.attempts.get(message.offset, 0) + 1 or message.offset in self.unsure
            if message.offset in self.requeued | self.unsure:
                self.attempts[message.offset] = message.attempts - 1
        self.open = open_now
        self.all_is_written()

    def forget(self) -> None:
        self.old += self.flight.values()
        self.flight.clear()

    # --- what always holds

    @invariant()
    def counts_are_exact(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert self.queue.depth == len(self.open)
        assert self.queue.qsize() == len(self.ready)
        assert self.queue.in_flight() == len(self.flight)
        assert self.queue.empty() is not bool(self.ready)
        assert self.queue.end_offset == len(self.log)
        assert self.queue.topic_stats().pending == 0
        assert self.queue.topic_stats().damages == 0

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.run(self.queue.aclose())
            assert self.fs.open_files == 0
        self.runner.close()
        shutil.rmtree(self.root)


class UvloopMachine(QueueMachine):
    loop_factory = uvloop.new_event_loop


@pytest.mark.parametrize("machine", [QueueMachine, pytest.param(UvloopMachine, marks=pytest.mark.slow)])
def test_any_sequence(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=25))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [QueueMachine, UvloopMachine])
def test_any_sequence_for_long(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=2_000, stateful_step_count=50))
