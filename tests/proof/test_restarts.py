"""A process is killed at a chosen call, another one goes on with what it wrote, and only then the power is cut."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

import aiodq
from aiodq.format.transactions import FIRST_BLOCK
from aiodq.testing import Disk, Made, Marked, Removed, Renamed, Synced, Truncated, Wrote
from tests.proof.explore import Case, begun, explore
from tests.proof.ledger import Found, Ledger
from tests.proof.oracle import Recoverer, judge, judge_found
from tests.proof.workloads import WORKLOADS
from tests.proof.world import World, run_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiodq.testing import Operation, Ordering
    from tests.proof.world import Program

ORDERINGS: tuple[Ordering, ...] = ("posix", "ext4")
SMALL = aiodq.StoreOptions(segment_bytes=700)


def named(trace: list[Operation]) -> Iterator[tuple[Operation, str]]:
    """Yield each operation with the name of the file or directory that it concerns, as it is then."""
    names: dict[int, str] = {0: "/"}
    for operation in trace:
        match operation:
            case Made(node, _, name) | Renamed(node, _, _, _, name):
                names[node] = name
                yield operation, name
            case Wrote(node) | Truncated(node) | Synced(node):
                yield operation, names[node]
            case Removed(_, name):
                yield operation, name
            case _:
                yield operation, ""


def broken(
    first: Program, killed_after: Callable[[Operation, str], bool], then: Program, ordering: Ordering, images: int = 2
) -> set[str]:
    """Kill `first` after the last operation like that, let `then` go on, and cut the power at each of its moments.

    Args:
        first: What is killed.
        killed_after: Whether an operation, with the name of what it concerns, is like that.
        then: What goes on with what is there.
        ordering: The order in which writes reach the disk.
        images: How many of the states that a cut may leave are looked at, at each moment.

    Returns:
        What contradicts a promise.
    """
    world = World(1, ordering=ordering)
    run_world(world, first)
    at = max(n for n, (operation, name) in enumerate(named(world.trace)) if killed_after(operation, name))
    again = World(2, ordering=ordering, life=1, killed=world.trace[: at + 1])
    run_world(again, then)
    disk, ledger, random, wrong = Disk(ordering), Ledger(), Random(1), set[str]()
    with Recoverer() as recoverer:
        for number, operation in enumerate(again.trace):
            disk.apply(operation)
            if isinstance(operation, Marked):
                if number > at and isinstance(operation.label, Found):
                    wrong |= set(judge_found(ledger, operation.label.topics, operation.label.damages))
                ledger.take(operation.label)
            elif number > at:
                for image in disk.cuts(random, images):
                    wrong |= set(judge(ledger, recoverer.open(image)))
    return wrong


async def transacting(world: World) -> None:
    async with world.store() as store:
        queue = world.queue(store, "jobs")
        for _ in range(3):
            await world.put(queue, "p")
        await world.transact(store, [await queue.get()], {"made": 1})
        await world.transact(store, [await queue.get()], {"made": 1})


async def looking(world: World) -> None:
    async with world.store():
        pass


async def putting(world: World) -> None:
    async with world.store(SMALL) as store:
        for name in store.topics():
            for _ in range(3):
                await world.put(store.topic(name), "q")


async def deleting(world: World) -> None:
    async with world.store() as store:
        for name in store.topics():
            await world.delete(store, name)
        await world.put(world.queue(store, "another"), "q")


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_transaction_found_after_a_kill_is_durable_before_its_effects(ordering: Ordering) -> None:
    def block_written(operation: Operation, name: str) -> bool:
        return isinstance(operation, Wrote) and name == "#transactions" and operation.position > FIRST_BLOCK

    assert broken(transacting, block_written, looking, ordering) == set()


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_transactions_forgotten_before_a_kill_do_not_come_back_to_topics_that_are_deleted(ordering: Ordering) -> None:
    def emptied(operation: Operation, name: str) -> bool:
        return isinstance(operation, Wrote) and name == "#transactions" and not operation.position

    assert broken(transacting, emptied, deleting, ordering) == set()


async def transacting_once(world: World) -> None:
    async with world.store() as store:
        queue = world.queue(store, "jobs")
        for _ in range(3 - world.life):
            await world.put(queue, "p")
        await world.transact(store, [await queue.get()], {"made": 1})


@pytest.mark.parametrize("kind", [Made, Wrote, Synced])
def test_the_file_of_transactions_that_a_killed_owner_made_has_a_durable_name_before_it_is_used(
    kind: type[Operation],
) -> None:
    found: list[Operation] = []

    def begun(operation: Operation, name: str) -> bool:
        if isinstance(operation, kind) and name == "#transactions" and not found:
            found.append(operation)
        return operation in found

    assert broken(transacting_once, begun, transacting_once, "posix") == set()


async def folding(world: World) -> None:
    with mock.patch("aiodq.engine.channel.acks.ack_persister._FOLD_AT", 3):
        async with world.store() as store:
            queue = world.queue(store, "jobs")
            await world.put_many(queue, "m", 9, 30)
            for message in await queue.get_many(9):
                await world.ack(message)


def test_acks_in_a_checkpoint_found_after_a_kill_do_not_come_again() -> None:
    def renamed(operation: Operation, name: str) -> bool:
        return isinstance(operation, Renamed) and name == "checkpoint"

    assert broken(folding, renamed, putting, "posix") == set()


async def rolling(world: World) -> None:
    async with world.store(SMALL) as store:
        queue = world.queue(store, "jobs")
        for _ in range(9):
            await world.put(queue, "p", 100)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_footer_found_after_a_kill_is_durable_before_the_next_segment_begins(ordering: Ordering) -> None:
    def sealed(operation: Operation, name: str) -> bool:
        # Frames are written where the last ones end; what cuts a segment to its size is its end.
        return isinstance(operation, Truncated) and name.endswith(".seg")

    assert broken(rolling, sealed, putting, ordering) == set()


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_a_topic_found_deleted_after_a_kill_does_not_come_back_in_part(ordering: Ordering) -> None:
    async def deleted(world: World) -> None:
        async with world.store() as store:
            await world.put(world.queue(store, "jobs"), "p")
            await world.delete(store, "jobs")

    def renamed(operation: Operation, name: str) -> bool:
        return isinstance(operation, Renamed) and name.endswith("#deleted")

    # There are few moments, and few states in which part of a topic is there.
    assert broken(deleted, renamed, looking, ordering, images=4) == set()


def test_a_kill_amid_a_write_leaves_whole_pages_of_it_and_amid_a_store_into_memory_any_of_its_bytes() -> None:
    data, random = bytes(range(1, 251)) * 40, Random(1)

    def left(*, stored: bool) -> set[bytes]:
        found = set[bytes]()
        for _ in range(200):
            file = bytearray(len(data))
            for part in begun(Wrote(1, 100, data, stored), random):
                file[part.position - 100 : part.position - 100 + len(part.data)] = part.data
            found.add(bytes(file))
        return found

    assert left(stored=False) == {data[:size] + bytes(len(data) - size) for size in (0, 4096 - 100, 8192 - 100)}
    torn = left(stored=True)
    assert any(not each[0] and each[-1] for each in torn), "the end, and not the beginning"
    assert any(each[0] and not each[1] and each[2] for each in torn), "single bytes"


def test_what_a_killed_process_had_put_is_there_whatever_store_into_memory_it_was_killed_in(seed: int) -> None:
    case = Case("written through memory", seed, states=1, nested=0, lives=1, moments=1, kills=12)
    assert explore(case, WORKLOADS[case.workload]).violations == []
