"""What a process holds while owners change, said step by step by an owner that is none."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
from aiodq.format.columns import Columns
from aiodq.shared.connection.finding.rendezvous import listen
from aiodq.shared.encoding.remote_errors import fail_of
from aiodq.shared.server import cut_off
from aiodq.shared.server.noted_clients import NotedClients
from aiodq.wire.frames import encode_messages
from aiodq.wire.packets import (
    Ack,
    Call,
    Deliver,
    Done,
    Held,
    Hello,
    Nack,
    Open,
    Packet,
    Ping,
    Pong,
    Range,
    Reject,
    Release,
    Resume,
    Want,
    Welcome,
)
from aiodq.wire.stream import PacketReader, encode_packet
from tests.shared.support import NO_PROCESS, PATIENCE, RawClient, cut, owned, two, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Owner:
    """Gives the first client message 0, and is gone; the next time it gives message 1 before it answers RESUME."""

    quick = True
    """Whether the first one goes as soon as something is wanted."""

    def __init__(self) -> None:
        self.epoch = 0
        self.acked: list[tuple[int, int]] = []
        self._channel = 0
        self._writer: asyncio.StreamWriter | None = None

    def hang_up(self) -> None:
        """End the connection there is."""
        assert self._writer is not None
        self._writer.close()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.epoch += 1
        epoch, packets, self._writer = self.epoch, PacketReader(), writer
        while data := await reader.read(1 << 16):
            for said, request in packets.feed(data):
                for answer, number in self._answers(said, request, epoch):
                    writer.write(encode_packet(answer, number))
                if epoch == 1 and isinstance(said, Want) and self.quick:
                    await writer.drain()
                    writer.close()
                if writer.is_closing():
                    return
        writer.close()

    def _deliver(self, offset: int) -> tuple[Packet, int]:
        return Deliver(self._channel, 1, offset, 100 + offset, encode_messages(Columns([b"%d" % offset]), 1)), 0

    def _left(self) -> object:
        return [[0, 7, 1]]

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        answer: Packet | None = Done() if request else None
        match said:
            case Hello():
                answer = Welcome(1, os.getpid(), epoch, 1 << 20, 0)
            case Open():
                self._channel = said.handle if said.channel else self._channel
            case Ping():
                answer = Pong(said.token)
            case Resume():
                return [self._deliver(1), (Done(None, {"held": self._left()}), request)]
            case Ack():
                self.acked += [(each.first, each.delivery) for each in said.ranges]
            case Call():
                facts = {"topics": [], "more": False} if said.name == "store" else None
                answer = Done(None, {"result": facts}) if said.name != "ended" else None
            case Want() if epoch == 1:
                return [self._deliver(0)]
        return [] if answer is None else [(answer, request)]


class Confused(Owner):
    """Answers RESUME with what is no answer."""

    def _left(self) -> object:
        return 5


@asynccontextmanager
async def served(path: Path, owner: Owner) -> AsyncIterator[None]:
    """Have an owner at a store that nobody has open."""
    async with aiodq.open(path) as store:
        await store.queue("jobs").put(b"x")
    listening = listen(str(path))
    server = await asyncio.start_unix_server(owner.talk, sock=listening.sock)
    try:
        yield
    finally:
        server.close()
        listening.close()


@asynccontextmanager
async def queue_of(owner: Owner, path: Path) -> AsyncIterator[aiodq.Queue]:
    """Have such an owner, and a client's queue."""
    async with served(path, owner), asyncio.timeout(PATIENCE), aiodq.open(path, mode="client") as client:
        yield client.queue("jobs")


async def test_what_comes_before_an_owner_has_said_what_is_held_stays_in_hand(tmp_path: Path) -> None:
    owner = Owner()
    async with queue_of(owner, tmp_path / "s") as queue:
        first = await queue.get()
        second = await queue.get()
        assert (first.body, second.body, owner.epoch) == (b"0", b"1", 2)
        await first.ack()
        await second.ack()
    assert sorted(owner.acked) == [(0, 7), (1, 101)]


async def test_who_settles_what_an_owner_says_nothing_of_is_told_in_words(tmp_path: Path) -> None:
    async with served(tmp_path / "s", Confused()), asyncio.timeout(PATIENCE):
        client = await aiodq.open(tmp_path / "s", mode="client", failover=5)
        first = await client.queue("jobs").get()
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to RESUME"):
            await first.ack()
        with pytest.raises(aiodq.ProtocolError, match="this is no answer to RESUME"):
            await client.aclose()


class Failing(Owner):
    """Cannot read what is held, the first time it is asked."""

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        if isinstance(said, Resume) and epoch == 2:
            return [(fail_of(aiodq.StorageError("Input/output error", "jobs/0.seg")), request)]
        return super()._answers(said, request, epoch)


async def test_what_an_owner_could_not_read_when_it_was_claimed_is_claimed_again(tmp_path: Path) -> None:
    owner = Failing()
    async with queue_of(owner, tmp_path / "s") as queue:
        first = await queue.get()
        try:
            await first.ack()
        except aiodq.StorageError as error:
            assert "Input/output error" in str(error)  # told, or repeated before anybody waits
        second = await queue.get()
        await second.ack()
        await queue.sync()
    assert (owner.epoch, sorted(owner.acked)) == (3, [(0, 7), (1, 101)])


class Slow(Owner):
    """Says what is held only after it has said what is ready; `cut` ends the connection when first asked."""

    cut = False

    def __init__(self) -> None:
        super().__init__()
        self._resuming: list[tuple[Packet, int]] = []

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        match said:
            case Resume():
                self._resuming = [(Done(None, {"held": self._left()}), request)]
                return []
            case Call(name="refresh") if self.cut:
                self.cut = False
                self.hang_up()
                return []
            case Call(name="refresh"):
                resuming, self._resuming = self._resuming, []
                return [(Done(None, {}), request), *resuming]
            case Want() if epoch > 1 or said.total > 1:
                return [self._deliver(1)] if epoch > 1 else []
        return super()._answers(said, request, epoch)


@pytest.mark.parametrize("cut", [False, True], ids=["before", "meanwhile"])
async def test_a_get_that_is_not_to_wait_asks_an_owner_that_has_said_what_is_held(tmp_path: Path, cut: bool) -> None:
    owner = Slow()
    owner.quick, owner.cut = not cut, cut
    async with queue_of(owner, tmp_path / "s") as queue:
        first = await queue.get()
        second = await queue.get(0)
        assert (first.body, second.body, owner.epoch) == (b"0", b"1", 2)
        await first.ack()
        await second.ack()


class Dying(Owner):
    """Ends as soon as it is told what is held, the first time."""

    quick = False

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[tuple[int, int]] = []

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        if isinstance(said, Resume):
            self.claims += [(said.epoch, each.delivery) for each in said.held]
            if epoch == 2:
                self.hang_up()
                return []
            return [(Done(None, {"held": [[0, 70 + epoch, 1]]}), request)]
        return super()._answers(said, request, epoch)


async def test_a_claim_names_the_owner_that_has_delivered_the_message_however_many_came_since(tmp_path: Path) -> None:
    owner = Dying()
    async with queue_of(owner, tmp_path / "s") as queue:
        first = await queue.get()
        owner.hang_up()
        await until(lambda: len(owner.claims) == 2)
        await until(lambda: queue._remote.claimed)  # type: ignore[attr-defined]  # of a store that is shared
        owner.hang_up()
        await first.ack()
    assert owner.claims == [(1, 100)] * 3
    assert owner.acked == [(0, 74)]


class Hasty(Owner):
    """Gives message 0 anew as soon as it is to be settled, and says nothing of that."""

    quick = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Packet] = []
        self.held: list[tuple[int, int]] = []

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        match said:
            case Want() if epoch == 1:
                return [self._deliver(0)] if said.total == 1 else []
            case Ack() | Nack() | Release() | Reject() if epoch == 1:
                again = Deliver(self._channel, 2, 0, 101, encode_messages(Columns([b"0"]), 1))
                return [(again, 0)]
            case Resume():
                self.held += [(each.first, each.delivery) for each in said.held]
                return [(Done(None, {"held": self._left()}), request)]
            case Nack() | Release() | Reject():
                self.asked.append(said)
        return super()._answers(said, request, epoch)


@asynccontextmanager
async def hasty(path: Path) -> AsyncIterator[tuple[Hasty, aiodq.Queue]]:
    """Have such an owner, and a queue of a process that it serves."""
    owner = Hasty()
    async with served(path, owner), asyncio.timeout(PATIENCE), aiodq.open(path, mode="client") as client:
        yield owner, client.queue("jobs")


@pytest.mark.parametrize("how", ["release", "nack", "later"])
async def test_what_was_given_anew_before_the_owner_went_is_not_asked_back(tmp_path: Path, how: str) -> None:
    async with hasty(tmp_path / "s") as (owner, queue):
        first = await queue.get()
        if how == "release":
            first.release()
        else:
            first.nack_nowait(0.001 if how == "later" else None)
        second = await queue.get()
        assert (first.body, second.body, second.attempts, owner.epoch) == (b"0", b"0", 2, 1)
        owner.hang_up()
        await second.ack()
        await queue.sync()
        assert (owner.held, owner.acked, owner.asked) == ([(0, 101)], [(0, 7)], [])


class Noting(Owner):
    """Is gone after message 0, does not answer RESUME before it may, and notes what is requeued."""

    def __init__(self) -> None:
        super().__init__()
        self.nacked: list[Nack] = []
        self.may_answer = asyncio.Event()

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        if isinstance(said, Nack):
            self.nacked.append(said)
        if isinstance(said, Resume) and not self.may_answer.is_set():
            assert self._writer is not None
            self._writer.close()
            return []
        return super()._answers(said, request, epoch)


async def test_the_delay_of_a_nack_counts_from_the_call_even_if_its_owner_is_dead(tmp_path: Path) -> None:
    owner = Noting()
    async with (
        served(tmp_path / "s", owner),
        asyncio.timeout(PATIENCE),
        aiodq.open(tmp_path / "s", mode="client") as client,
    ):
        first = await client.queue("jobs").get()
        await until(lambda: owner.epoch > 1)
        first.nack_nowait(3600)
        await asyncio.sleep(0.1)
        owner.may_answer.set()
        await until(lambda: owner.nacked)
        (item,) = owner.nacked[0].items
        # Half of the time slept: the loop's clock may be coarse.
        assert item.span <= 3_600_000_000_000 - 50_000_000


@pytest.mark.parametrize("how", ["ack", "ack_many", "reject"])
async def test_what_was_taken_away_before_the_owner_went_is_not_settled_by_who_had_it(tmp_path: Path, how: str) -> None:
    async with hasty(tmp_path / "s") as (owner, queue):
        first = await queue.get()
        settled_in_vain = asyncio.ensure_future(settled(queue, first, how))
        second = await queue.get()
        owner.hang_up()
        with pytest.raises(aiodq.NotInFlightError, match="message 0 is not in flight here any more"):
            await settled_in_vain
        await second.ack()
        assert (owner.held, owner.acked, owner.asked) == ([(0, 101)], [(0, 7)], [])


async def settled(queue: aiodq.Queue, message: aiodq.Message, how: str) -> None:
    """Settle a message for good, by this verb."""
    if how == "ack_many":
        await queue.ack_many([message])
    elif how == "reject":
        await message.reject()
    else:
        await message.ack()


async def test_who_comes_back_too_late_is_not_given_anew_what_it_has_in_hand(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner), asyncio.timeout(PATIENCE):
        await store.queue("jobs").put(b"0")
        async with aiodq.open(tmp_path / "s", mode="client") as client:
            queue = client.queue("jobs")
            first = await queue.get()
            getting = asyncio.create_task(queue.get())
            [session] = owner.clients
            session._wire.end()  # which gives back what it holds, as after the time in which it may be claimed
            await until(lambda: [each for each in owner.clients if each is not session and each.holds()])
            await store.topic("jobs").put(b"1")
            second = await getting
            assert (second.body, first.held) == (b"1", True)
            await first.ack()
            await second.ack()


class Late(Owner):
    """Ends as message 0 is settled, and the next one has given it to somebody else, or has it settled."""

    quick = False

    def __init__(self, elsewhere: list[int]) -> None:
        super().__init__()
        self._elsewhere = elsewhere

    def _answers(self, said: Packet, request: int, epoch: int) -> list[tuple[Packet, int]]:
        match said:
            case Ack() | Reject() if epoch == 1:
                self.hang_up()
                return []
            case Resume():
                return [(Done(None, {"held": [], "elsewhere": self._elsewhere}), request)]
        return super()._answers(said, request, epoch)


@pytest.mark.parametrize("how", ["ack", "ack_many", "reject"])
async def test_what_went_to_others_meanwhile_is_not_settled_by_who_had_it(tmp_path: Path, how: str) -> None:
    owner = Late(elsewhere=[0])
    async with queue_of(owner, tmp_path / "s") as queue:
        message = await queue.get()
        with pytest.raises(aiodq.NotInFlightError, match="message 0 is not in flight here any more"):
            await settled(queue, message, how)
    assert owner.epoch == 2


@pytest.mark.parametrize("how", ["ack", "ack_many", "reject"])
async def test_what_the_next_owner_finds_settled_is_so(tmp_path: Path, how: str) -> None:
    owner = Late(elsewhere=[])
    async with queue_of(owner, tmp_path / "s") as queue:
        await settled(queue, await queue.get(), how)
    assert owner.epoch == 2


MANY = aiodq.ChannelOptions(max_in_flight=5_000)


async def test_what_is_in_hand_stays_there_though_the_connection_is_cut_and_others_wait(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, client), asyncio.timeout(PATIENCE):
        jobs, queue = owner.queue("jobs", MANY), client.queue("jobs")
        await jobs.put_many([b"%d" % number for number in range(500)])
        messages: list[aiodq.Message] = []
        while len(messages) < 500:
            messages += await queue.get_many(500 - len(messages))
        others = asyncio.ensure_future(jobs.get())
        link: Any = client._store_engine.link  # type: ignore[attr-defined]  # it stands in its place
        for _ in range(3):
            await cut(link)
        for message in messages:
            await message.touch()
            message.ack_nowait()
        await queue.sync()
        await jobs.put(b"the next")
        assert (await others).body == b"the next"
        await jobs.refresh()
        assert (jobs.qsize(), jobs.in_flight()) == (0, 1)


async def joined(path: Path) -> RawClient:
    client = await RawClient.connected(path)
    await client.hello(7, pid=os.getpid())
    await client.open(1, "jobs")
    await client.open(2, "jobs", "default")
    return client


async def test_who_is_back_before_the_end_of_its_connection_is_noticed_has_what_it_claims(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        queue = store.queue("jobs")
        await queue.put_many([b"0", b"1", b"2", b"3"])
        before = await joined(tmp_path / "s")
        [zero, one, two, three] = [number for _, number, _ in await before.take(2, 4, 4)]
        client = await joined(tmp_path / "s")
        held = (Held(0, zero, 2, 1), Held(3, three, 1, 1))
        answer = await client.ask(Resume(2, owner.epoch, held))
        assert answer == Done(None, {"held": [[0, zero, 2], [3, three, 1]], "elsewhere": []})
        assert queue.in_flight() == 4
        assert await before.ask(Ack(2, owner.epoch, (Range(2, two, 1),))) == Done()
        assert await client.ask(Call("back", {})) == Done()
        with pytest.raises(ConnectionResetError):
            await before.answer(0)
        assert (
            await client.ask(Ack(2, owner.epoch, (Range(0, zero, 1), Range(1, one, 1), Range(3, three, 1)))) == Done()
        )
        assert queue.depth == 0
        await client.close()
        await before.close()


async def test_what_is_claimed_beside_what_is_still_held_has_a_number_of_its_own(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        await store.queue("jobs").put_many([b"0", b"1", b"2"])
        before = await joined(tmp_path / "s")
        [zero, _, two] = [number for _, number, _ in await before.take(2, 3, 3)]
        assert await before.ask(Release(2, owner.epoch, (Range(2, two, 1),))) == Done()
        client = await joined(tmp_path / "s")
        answer = await client.ask(Resume(2, owner.epoch, (Held(0, zero, 3, 1),)))
        assert answer == Done(None, {"held": [[0, zero, 2], [2, two + 1, 1]], "elsewhere": []})
        assert await client.ask(Ack(2, owner.epoch, (Range(0, zero, 2), Range(2, two + 1, 1)))) == Done()
        await client.close()
        await before.close()


async def test_what_is_being_rejected_is_so_though_the_connection_is_cut_twice(tmp_path: Path) -> None:
    async with two(tmp_path / "s") as (owner, client), asyncio.timeout(PATIENCE):
        dead = owner.queue("dead", options=aiodq.StoreOptions(max_messages=1))
        await dead.put(b"full")
        queue = client.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        await queue.put_many([b"0", b"1"])
        message, kept = await queue.get_many(2)
        rejecting = asyncio.create_task(message.reject())
        await kept.touch()
        await queue.refresh()  # which the owner answers after it has begun to reject
        for _ in range(2):
            await cut(client._store_engine.link)  # type: ignore[attr-defined]  # as above
            await kept.touch()
            await queue.refresh()
        await (await dead.get()).ack()
        await rejecting
        assert (await dead.get()).body == b"0"
        await kept.ack()


async def test_what_who_lives_and_does_not_come_back_held_goes_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_off, "_LONGEST", 0.05)
    async with owned(tmp_path / "s") as (store, _), asyncio.timeout(PATIENCE):
        await store.queue("jobs").put(b"0")
        client = await joined(tmp_path / "s")
        await client.take(2, 1, 1)
        await client.close()
        message = await store.queue("jobs").get()
        assert (message.body, message.attempts) == (b"0", 1)


async def test_what_who_closes_its_store_holds_goes_to_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_off, "_LONGEST", float("inf"))
    async with two(tmp_path / "s") as (owner, client), asyncio.timeout(PATIENCE):
        await owner.queue("jobs").put(b"0")
        held = await client.queue("jobs").get()
        await client.aclose()
        message = await owner.queue("jobs").get()
        assert (message.body, message.attempts, held.held) == (b"0", 1, False)


async def test_an_owner_that_closes_notes_those_alone_who_hold_something(tmp_path: Path) -> None:
    async with owned(tmp_path / "s") as (store, owner):
        await store.queue("jobs").put(b"x")
        idle, busy = [await RawClient.connected(tmp_path / "s") for _ in range(2)]
        for producer, client in ((7, idle), (8, busy)):
            await client.hello(producer)
            await client.open(1, "jobs", "default")
        await busy.take(1, 1, 1)
        noted = NotedClients(str(tmp_path / "s"))
        assert noted.read() == {7: NO_PROCESS, 8: NO_PROCESS}
        await owner.close()
        assert noted.read() == {8: NO_PROCESS}  # the next one would wait for the other for nothing
        for client in (idle, busy):
            await client.close()
