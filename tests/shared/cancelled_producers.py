"""What a producer is cancelled in, and whoever keeps a store: as `cancelled_consumers`."""

from __future__ import annotations

import asyncio
from typing import Any

import aiodq
from tests.shared.cancelled_consumers import DEAD, held
from tests.shared.cancelling import BODIES, Case, Doing, result_of
from tests.shared.support import QUICK, until

# --- putting


async def stored(case: Case, calling: asyncio.Task[Any], *bodies: bytes) -> list[bytes]:
    """Return what is left where something was put, or not, before something else."""
    await case.queue.put(b"last")
    await case.other.topic("jobs").sync()
    found = [message.body async for message in case.other.topic("jobs").scan(8)]
    if not calling.cancelled():
        calling.result()
        assert found == [*bodies, b"last"]
    assert found in ([*bodies, b"last"], [b"last"])
    return found


async def put(case: Case) -> list[bytes]:
    return BODIES + await stored(case, await case.cancelled(case.queue.put(b"8")), b"8")


async def put_labelled(case: Case) -> list[bytes]:
    calling = await case.cancelled(case.queue.put(b"8", key=b"k", tag="t", headers={"a": "b"}))
    return BODIES + await stored(case, calling, b"8")


async def put_many(case: Case) -> list[bytes]:
    return BODIES + await stored(case, await case.cancelled(case.queue.put_many([b"8", b"9"])), b"8", b"9")


async def put_late(case: Case) -> list[bytes]:
    calling = await case.cancelled(case.queue.put(b"8", delay=3600))
    found = await stored(case, calling, b"8")
    if found == [b"last"]:
        return [*BODIES, b"last"]
    await case.settled(9, 0, 1)
    await case.others.cancel(8)
    return [*BODIES, b"last"]


async def put_among_others(case: Case) -> list[bytes]:
    first = asyncio.ensure_future(case.queue.put(b"first"))
    calling = asyncio.ensure_future(case.cancelled(case.queue.put(b"8")))
    await asyncio.sleep(0)
    third = asyncio.ensure_future(case.queue.put(b"third"))
    await asyncio.wait([first, calling, third])
    assert first.result() == 8
    await case.queue.put(b"last")
    await case.other.topic("jobs").sync()
    found = [message.body async for message in case.other.topic("jobs").scan(8)]
    assert [body for body in found if body != b"8"] == [b"first", b"third", b"last"], found
    assert found.count(b"8") <= 1
    if not calling.result().cancelled():
        assert found[calling.result().result() - 8] == b"8"
    return BODIES + found


async def put_into_full(case: Case) -> list[bytes]:
    await case.other.topic("jobs").configure(aiodq.StoreOptions(max_messages=8, sync=QUICK.sync))
    calling = asyncio.ensure_future(case.cancelled(case.queue.put(b"8")))
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(case.queue.put(b"9"))
    beside = asyncio.ensure_future(case.others.put(b"10"))
    await asyncio.wait([calling])
    assert calling.result().cancelled()
    for body in BODIES[:2]:
        message = await case.others.get()
        assert message.body == body
        await message.ack()
    assert sorted([await behind, await beside]) == [8, 9]
    found = [message.body async for message in case.other.topic("jobs").scan(8)]
    assert sorted(found) == [b"10", b"9"], found
    return BODIES[2:] + found


# --- the rest


async def seek(case: Case) -> list[bytes]:
    message = await held(case)
    await case.cancelled(case.queue.seek(5))
    if not case.begun:
        message.release()
        return BODIES
    await case.settled(3)
    return BODIES[5:]


async def purge(case: Case) -> list[bytes]:
    await case.cancelled(case.queue.purge())
    return [] if case.begun else BODIES


async def purge_channel(case: Case) -> list[bytes]:
    await case.cancelled(case.store.topic("jobs").channel("default").purge())
    return [] if case.begun else BODIES


async def sync(case: Case) -> list[bytes]:
    for body in BODIES[:2]:
        message = await case.queue.get()
        assert message.body == body
        message.ack_nowait()
    case.queue.put_nowait(b"8")
    await case.cancelled(case.queue.sync())
    if case.begun:
        while case.others.durable_offset < 9:
            await case.others.refresh()
            await asyncio.sleep(0.002)
    return [*BODIES[2:], b"8"]


async def pause(case: Case) -> list[bytes]:
    async def call() -> None:
        await case.queue.pause()

    await case.cancelled(call())
    if case.begun:
        while not case.others.paused:
            await asyncio.sleep(0.002)
        await case.cancelled(resumed(case))
        await case.others.resume()
    return BODIES


async def resumed(case: Case) -> None:
    await case.queue.resume()


async def configure(case: Case) -> list[bytes]:
    await case.cancelled(case.queue.configure(DEAD))
    if case.begun:
        while case.others.options != DEAD:
            await asyncio.sleep(0.002)
    return BODIES


async def configure_topic(case: Case) -> list[bytes]:
    await case.cancelled(case.queue.configure(aiodq.StoreOptions(max_messages=9, sync=QUICK.sync)))
    if case.begun:
        while case.others.maxsize != 9:
            await asyncio.sleep(0.002)
    return BODIES


async def name_topic(case: Case) -> list[bytes]:
    calling = await case.cancelled(case.store.topic("new").put(b"0"))
    await case.other.topic("new").put(b"1")
    await case.store.topic("new").put(b"2")
    found = [message.body async for message in case.other.topic("new").scan()]
    assert found[-2:] == [b"1", b"2"]
    assert found[:-2] in ([b"0"], []) if calling.cancelled() else found[0] == b"0"
    return BODIES


async def name_queue(case: Case) -> list[bytes]:
    calling = await case.cancelled(case.store.queue("new").get())
    assert calling.cancelled()
    await case.other.queue("new").put(b"0")
    message = await case.other.queue("new").get()
    await message.ack()
    await case.store.queue("new").join()
    return BODIES


async def name_channel(case: Case) -> list[bytes]:
    channel = aiodq.ChannelOptions(start="earliest")
    got = result_of(await case.cancelled(case.store.topic("jobs").channel("new", channel).get()))
    if got is not None:
        got.release()
    bodies = list[bytes]()
    new = case.other.topic("jobs").channel("new")
    while True:
        await new.refresh()
        if new.qsize() == 8:
            break
        await asyncio.sleep(0.002)
    while len(bodies) < 8:
        message = await new.get()
        bodies.append(message.body)
        await message.ack()
    assert bodies == BODIES
    await new.join()
    return BODIES


async def delete_channel(case: Case) -> list[bytes]:
    channel = aiodq.ChannelOptions(start="earliest")
    for store in (case.store, case.other):
        await store.topic("jobs").channel("old", channel).refresh()
    getting = asyncio.ensure_future(case.other.topic("jobs").channel("old").get())
    await case.cancelled(case.store.topic("jobs").delete_channel("old"))
    if case.begun:
        await until(lambda: "old" not in case.other.topic("jobs").channels())
    else:
        await case.store.topic("jobs").delete_channel("old")
    await asyncio.wait([getting])
    if isinstance(getting.exception(), aiodq.QueueShutDown):
        pass
    else:
        getting.result()
    for store in (case.store, case.other):
        while True:
            try:
                new = store.topic("jobs").channel("old")
                await new.refresh()
                break
            except aiodq.QueueShutDown:
                await asyncio.sleep(0.002)
        assert new.qsize() == 0
    return BODIES


async def delete_topic(case: Case) -> None:
    for store in (case.store, case.other):
        await store.queue("jobs").refresh()
    await case.cancelled(case.store.delete_topic("jobs"))
    if case.begun:
        await until(lambda: "jobs" not in case.other.topics())
    else:
        await case.store.delete_topic("jobs")
    async with asyncio.timeout(10):
        while True:
            try:
                assert await case.store.queue("jobs").put(b"x") == 0
                break
            except aiodq.QueueShutDown:
                await asyncio.sleep(0.002)
        while True:
            try:
                message = await case.others.get()
                break
            except aiodq.QueueShutDown:
                await asyncio.sleep(0.002)
        assert message.body == b"x"
        await message.ack()
        await case.others.join()


async def join(case: Case) -> list[bytes]:
    await case.cancelled(case.queue.join())
    return BODIES


async def join_amid(case: Case) -> list[bytes]:
    async def work() -> None:
        for _ in BODIES:
            message = await case.others.get()
            await message.ack()

    joining = asyncio.ensure_future(case.queue.join())
    working = asyncio.ensure_future(work())
    await case.cancelled(case.queue.join())
    await asyncio.wait([joining, working])
    joining.result()
    working.result()
    return []


async def refresh(case: Case) -> list[bytes]:
    await case.cancelled(case.queue.refresh())
    return BODIES


async def read(case: Case) -> list[bytes]:
    async def look() -> None:
        await case.queue.read(3)
        async for _ in case.queue.scan():
            await asyncio.sleep(0)

    await case.cancelled(look())
    return BODIES


async def cancel_deferred(case: Case) -> list[bytes]:
    await case.queue.put(b"8", delay=3600)
    await case.settled(8, 0, 1)

    async def each() -> None:
        async for message in case.queue.deferred_messages():
            assert message.body == b"8"

    if case.turns % 2:
        await case.cancelled(each())
        await case.others.cancel(8)
        return BODIES
    await case.cancelled(case.queue.cancel(8))
    if not case.begun:
        await case.others.cancel(8)
    return BODIES


async def hear_events(case: Case) -> list[bytes]:
    await case.queue.configure(DEAD)
    events = case.store.events()
    await case.queue.refresh()

    async def hear() -> Any:
        return await anext(events)

    message = await held(case)
    calling = asyncio.ensure_future(case.cancelled(hear()))
    await asyncio.sleep(0)
    await message.reject("no")
    await asyncio.wait([calling])
    event = result_of(calling.result())
    if event is None:
        async with asyncio.timeout(5):
            event = await anext(events)
    assert (event.kind, event.offset) == ("dead", 0)
    await events.aclose() if hasattr(events, "aclose") else None
    return BODIES[1:]


async def drain(case: Case) -> None:
    await case.cancelled(case.store.drain())
    got = list[bytes]()
    while len(got) < 8:
        message = await case.others.get()
        got.append(message.body)
        await message.ack()
    assert got == BODIES
    assert await case.other.drain(20)


async def stop_channel(case: Case) -> None:
    message = await held(case)
    await case.cancelled(case.queue.stop(0.01))
    message.release()
    await case.queue.stop()
    if case.store is not case.other:
        for body in BODIES:
            message = await case.others.get()
            assert message.body == body
            await message.ack()
        await case.others.join()


async def stop_store(case: Case) -> None:
    message = await held(case)
    if case.turns % 2:
        message.ack_nowait()
    await case.cancelled(case.store.stop(0.01))
    await case.store.stop()
    await check_left(case, BODIES[1:] if case.turns % 2 else BODIES)


async def close(case: Case) -> None:
    message = await held(case)
    receipt = case.queue.put_nowait(b"8")
    message.ack_nowait()
    await case.cancelled(case.store.aclose())
    await case.store.aclose()
    assert await receipt == 8
    await check_left(case, [*BODIES[1:], b"8"])


async def close_and_open(case: Case) -> None:
    """Open a store while it closes, of which nobody has awaited the end."""
    if case.other is not case.store:
        await case.other.aclose()
    await case.cancelled(case.store.aclose())
    if case.begun:
        async with aiodq.open(case.path, QUICK) as store:
            assert store.queue("jobs").qsize() == 8
    await case.store.aclose()
    await check_left(case, BODIES)


async def check_left(case: Case, left: list[bytes]) -> None:
    await case.other.aclose()
    async with aiodq.open(case.path, QUICK) as store:
        queue, found = store.queue("jobs"), list[bytes]()
        while queue.qsize():
            found.append((await queue.get()).body)
    assert found == left, found


async def backup(case: Case) -> list[bytes]:
    calling = await case.cancelled(case.store.backup(case.path.with_suffix(".backup")))
    if calling.cancelled():
        while True:
            try:
                await case.other.backup(case.path.with_suffix(".backup"))
                break
            except aiodq.NotAStoreError:
                break  # it was complete by then
            except aiodq.StoreLockedError:
                await asyncio.sleep(0.002)
    async with aiodq.open(case.path.with_suffix(".backup"), QUICK) as store:
        assert store.queue("jobs").qsize() == 8
    return BODIES


async def open_again(case: Case) -> None:
    await case.store.aclose()
    await case.other.aclose()

    async def opens() -> None:
        mode: Any = "exclusive" if case.store is case.other else "shared"
        async with aiodq.open(case.path, QUICK, mode=mode) as store:
            await store.queue("jobs").refresh()

    await case.cancelled(opens())
    await check_left(case, BODIES)


async def open_client(case: Case) -> list[bytes]:
    async def opens() -> None:
        if case.store is case.other:
            return
        async with aiodq.open(case.path, QUICK, mode="shared") as store:
            await store.queue("jobs").refresh()
            await (await store.queue("jobs").get()).nack()

    await case.cancelled(opens())
    return BODIES


ALL: list[Doing] = [
    put,
    put_labelled,
    put_many,
    put_late,
    put_among_others,
    put_into_full,
    seek,
    purge,
    purge_channel,
    sync,
    pause,
    configure,
    configure_topic,
    name_topic,
    name_queue,
    name_channel,
    delete_channel,
    delete_topic,
    join,
    join_amid,
    refresh,
    read,
    cancel_deferred,
    hear_events,
    drain,
    stop_channel,
    stop_store,
    close,
    close_and_open,
    backup,
    open_again,
    open_client,
]
