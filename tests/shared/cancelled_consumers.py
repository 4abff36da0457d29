"""What a consumer is cancelled in: each returns what is to be left, in this order, or None if nothing is."""

from __future__ import annotations

import asyncio
from typing import Any

import aiodq
from tests.shared.cancelling import BODIES, Case, Doing, result_of
from tests.shared.support import QUICK

DEAD = aiodq.ChannelOptions(dead_letter="dead")


def without(*bodies: bytes) -> list[bytes]:
    return [body for body in BODIES if body not in bodies]


# --- getting


async def get(case: Case) -> list[bytes]:
    message = result_of(await case.cancelled(case.queue.get()))
    if message is None:
        return BODIES
    await message.ack()
    return without(message.body)


async def get_in_time(case: Case) -> list[bytes]:
    message = result_of(await case.cancelled(case.queue.get(timeout=20)))
    if message is None:
        return BODIES
    await message.ack()
    return without(message.body)


async def get_at_once(case: Case) -> list[bytes]:
    message = result_of(await case.cancelled(case.queue.get(timeout=0)))
    if message is None:
        return BODIES
    await message.ack()
    return without(message.body)


async def empty(case: Case) -> None:
    messages = await case.others.get_many(8)
    while len(messages) < 8:
        messages += await case.others.get_many(8)
    await case.others.ack_many(messages)
    await case.settled(0)


async def get_what_comes(case: Case) -> list[bytes]:
    await empty(case)
    first: asyncio.Task[Any] = asyncio.ensure_future(case.cancelled(case.queue.get()))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(case.queue.get())
    third = asyncio.ensure_future(case.others.get())
    await case.others.put(b"a")
    await asyncio.wait([first])
    got = result_of(first.result())
    await case.others.put_many([b"b", b"c"])
    two = [await second, await third]
    for message in [*two, *([] if got is None else [got])]:
        await message.ack()
    bodies = sorted(message.body for message in [*two, *([] if got is None else [got])])
    if got is None:
        assert bodies == [b"a", b"b"], bodies
        return [b"c"]
    assert bodies == [b"a", b"b", b"c"], bodies
    return []


async def get_many(case: Case) -> list[bytes]:
    messages = result_of(await case.cancelled(case.queue.get_many(4)), [])
    await case.queue.ack_many(messages)
    return without(*(message.body for message in messages))


async def get_many_lingering(case: Case) -> list[bytes]:
    messages = result_of(await case.cancelled(case.queue.get_many(20, linger=20)), [])
    assert not messages
    return BODIES


async def iterate(case: Case) -> list[bytes]:
    got = list[bytes]()

    async def take() -> None:
        async for message in case.queue:
            got.append(message.body)
            message.ack_nowait()
            await asyncio.sleep(0)

    await case.cancelled(take())
    assert got == BODIES[: len(got)]
    return BODIES[len(got) :]


async def iterate_in_blocks(case: Case) -> list[bytes]:
    done = list[bytes]()

    async def take() -> None:
        async for message in case.queue:
            async with message:
                await asyncio.sleep(0)
                done.append(message.body)

    await case.cancelled(take())
    assert done == BODIES[: len(done)]
    return BODIES[len(done) :]


async def consume(case: Case) -> list[bytes]:
    done = list[bytes]()

    async def handle(message: aiodq.Message) -> None:
        await asyncio.sleep(0)
        done.append(message.body)

    await case.cancelled(case.queue.consume(handle, concurrency=2))
    return without(*done)


async def peek(case: Case) -> list[bytes]:
    await case.cancelled(case.queue.peek())
    return BODIES


# --- settling


async def held(case: Case) -> aiodq.Message:
    message = await case.queue.get()
    assert message.body == b"0"
    return message


async def ack(case: Case) -> list[bytes]:
    message = await held(case)
    await case.cancelled(message.ack())
    assert message.settled == case.begun
    if not case.begun:
        message.release()
        return BODIES
    return BODIES[1:]


async def ack_many(case: Case) -> list[bytes]:
    messages = await case.queue.get_many(8)

    async def settle() -> None:
        await case.queue.ack_many(messages)

    await case.cancelled(settle())
    assert {message.settled for message in messages} == {case.begun}
    if not case.begun:
        for message in messages:
            message.release()
        return BODIES
    return BODIES[len(messages) :]


async def nack(case: Case) -> list[bytes]:
    message = await held(case)
    await case.cancelled(message.nack())
    assert message.settled == case.begun
    if not case.begun:
        message.release()
    await case.settled(8)
    again = await case.others.get()
    assert (again.body, again.attempts) == (b"0", 2 if case.begun else 1)
    again.release()
    return BODIES


async def nack_late(case: Case) -> list[bytes]:
    message = await held(case)
    await case.cancelled(message.nack(3600))
    if not case.begun:
        message.release()
        return BODIES
    await case.settled(7, 0, 1)
    await case.others.cancel(0)
    return BODIES[1:]


async def touch(case: Case) -> list[bytes]:
    message = await held(case)
    await case.cancelled(message.touch())
    await message.ack()
    return BODIES[1:]


async def release(case: Case) -> list[bytes]:
    async def block() -> None:
        async with await case.queue.get():
            await asyncio.sleep(3600)

    await case.cancelled(block())
    await case.settled(8)
    message = await case.others.get()
    assert (message.body, message.attempts) == (b"0", 1)
    message.release()
    return BODIES


async def retry(case: Case) -> list[bytes]:
    async def block() -> None:
        async with await case.queue.get():
            raise aiodq.Retry

    calling = await case.cancelled(block())
    if not calling.cancelled():
        assert isinstance(calling.exception(), aiodq.Retry)
    return BODIES


async def reject(case: Case) -> list[bytes]:
    await case.queue.configure(DEAD)
    message = await held(case)
    await case.cancelled(message.reject("no"))
    if not case.begun:
        message.release()
        return BODIES
    await case.settled(7)
    letter = await case.other.queue("dead").get()
    assert letter.body == b"0"
    await letter.ack()
    await case.other.queue("dead").join()
    return BODIES[1:]


async def requeue_dead(case: Case) -> list[bytes]:
    await case.queue.configure(DEAD)
    for _ in range(3):
        await (await case.queue.get()).reject("no")
    await case.cancelled(case.store.requeue_dead("dead"))
    await case.other.requeue_dead("dead")
    await case.settled(8)
    dead = case.other.queue("dead")
    await dead.refresh()
    assert dead.depth == 0
    return BODIES[3:] + BODIES[:3]


# --- transactions


async def transact(case: Case) -> list[bytes]:
    message = await held(case)
    await case.store.topic("out").settle_in()

    async def commit() -> None:
        async with case.store.transaction() as tx:
            tx.ack(message)
            tx.put("out", b"x")

    calling = await case.cancelled(commit())
    return await outcome(case, calling, message)


async def transact_message(case: Case) -> list[bytes]:
    message = await held(case)

    async def commit() -> None:
        async with message.transaction() as tx:
            await asyncio.sleep(0)
            tx.put("out", b"x")

    calling = await case.cancelled(commit())
    return await outcome(case, calling, message)


async def transact_joining(case: Case) -> list[bytes]:
    message = await held(case)

    async def commit() -> None:
        async with case.store.transaction() as tx, message:
            await asyncio.sleep(0)
            tx.put("out", b"x")

    calling = await case.cancelled(commit())
    return await outcome(case, calling, message)


async def decided(case: Case) -> None:
    """Wait until it is decided what becomes of a transaction whose caller was cancelled."""
    async with case.store.transaction() as tx:
        tx.put("fence", b"")
    while getattr(case.store._store_engine.committer, "pending", 0):
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)


async def outcome(case: Case, calling: asyncio.Task[Any], message: aiodq.Message) -> list[bytes]:
    """Return what is left of a transaction: all of it was done, or nothing."""
    await decided(case)
    await case.other.topic("out").settle_in()
    out = [each.body async for each in case.other.topic("out").scan()]
    if not calling.cancelled():
        calling.result()
        assert out == [b"x"]
    if out:
        assert out == [b"x"]
        assert message.settled, "committed, and not settled"
        return BODIES[1:]
    if not message.settled:
        message.release()
    return BODIES


async def transact_full(case: Case) -> list[bytes]:
    """Wait in a transaction for room that only somebody else makes."""
    await case.other.queue("out", options=aiodq.StoreOptions(max_messages=1, sync=QUICK.sync)).put(b"full")
    message = await held(case)

    async def commit() -> None:
        async with case.store.transaction() as tx:
            tx.ack(message)
            tx.put("out", b"x")

    calling = await case.cancelled(commit())
    assert calling.cancelled()
    await decided(case)
    assert not message.settled
    message.release()
    out = case.other.queue("out")
    full = await out.get()
    await full.ack()
    await out.put(b"y")
    last = await out.get()
    assert last.body == b"y"
    await last.ack()
    await out.join()
    return BODIES


ALL: list[Doing] = [
    get,
    get_in_time,
    get_at_once,
    get_what_comes,
    get_many,
    get_many_lingering,
    iterate,
    iterate_in_blocks,
    consume,
    peek,
    ack,
    ack_many,
    nack,
    nack_late,
    touch,
    release,
    retry,
    reject,
    requeue_dead,
    transact,
    transact_message,
    transact_joining,
    transact_full,
]
