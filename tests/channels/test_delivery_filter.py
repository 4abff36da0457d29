"""What may be handed out as it is, of neighbours, is what would be one by one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aiodq.delivery.leases import GAP, HELD, SKIPPED
from aiodq.engine.channel.addressed import FOR
from aiodq.engine.channel.source.delivery_filter import NEVER, DeliveryFilter
from aiodq.engine.lifetimes import Lifetimes
from aiodq.engine.loop.clock_timer import monotonic_ns
from aiodq.engine.reading.small_batches import LONGEST_RUN, joined, merged
from aiodq.engine.reading.tail_cache import BATCH_OVERHEAD, TailCache, batch_cost
from aiodq.format.columns import Columns
from aiodq.format.frame import Batch
from aiodq.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = st.lists(
    st.fixed_dictionaries({
        "tag": st.sampled_from(["a", "b", None]),
        "headers": st.sampled_from([{}, {}, {"x": "y"}, {FOR: "mine"}, {FOR: "theirs"}]),
        "due": st.sampled_from([0, 0, -3, 3]),
        "expiry": st.sampled_from([0, 0, 5, 9, -2]),
        "time": st.integers(-4, 4),
    }),
    min_size=1,
    max_size=12,
)  # fmt: skip
COLUMNS = st.sets(st.sampled_from(["tags", "headers", "dues", "expiries", "times"]))
TAKEN = st.sets(st.integers(1, 11), max_size=4)
JUMPS = st.lists(st.tuples(st.integers(0, 12), st.integers(-6, 6)), max_size=3)


def columns_of(messages: list[dict[str, Any]], wall: int, there: set[str]) -> Columns:
    def column(name: str, values: list[Any]) -> list[Any] | None:
        return values if name in there else None

    return Columns(
        [b""] * len(messages),
        column("times", [wall + each["time"] for each in messages]),
        column("dues", [wall + each["due"] if each["due"] else 0 for each in messages]),
        column("expiries", [wall + each["expiry"] if each["expiry"] else 0 for each in messages]),
        tags=column("tags", [each["tag"] for each in messages]),
        headers=column("headers", [each["headers"] for each in messages]),
    )


@settings(max_examples=80)
@given(messages=MESSAGES, there=COLUMNS, tags=st.sampled_from([None, {"a"}, {"a", "b"}]), begin=st.integers(0, 11),
       jumps=JUMPS, passing=st.integers(0, 7), own=st.booleans(), taken=TAKEN)  # fmt: skip
def test_a_run_ends_where_one_would_not_be_delivered(
    *, messages: list[dict[str, Any]], there: set[str], tags: set[str] | None, begin: int, jumps: list[tuple[int, int]],
    passing: int, own: bool, taken: set[int],
) -> None:  # fmt: skip
    second = 10**9
    messages = [{**each, **{name: each[name] * second for name in ("due", "expiry", "time")}} for each in messages]
    clock = FakeClock()
    lifetimes = Lifetimes(clock)
    wall = clock.now_ns()
    if own:
        lifetimes.note(0, 0)
    for offset, jump in sorted(jumps):
        clock.jump(jump)
        lifetimes.note(offset, 0)
    clock.advance(passing)
    chosen = DeliveryFilter("mine", lifetimes, clock)
    chosen.tags = None if tags is None else frozenset(tags)
    batch = Batch(0, wall, columns_of(messages, wall, there))
    columns, begin = batch.columns, min(begin, len(messages) - 1)

    def delivered(number: int) -> bool:
        named = columns.headers is not None and FOR in columns.headers[number]
        late = columns.dues is not None and columns.dues[number] > clock.now_ns()
        over = chosen.is_over(batch, number, monotonic_ns(clock))
        return not (chosen.is_for_others(columns, number) or named or late or over)

    count, until = chosen.deliverable(batch, begin, len(messages) - begin)
    right = 0
    while begin + right < len(messages) and delivered(begin + right):
        right += 1
    # Where clocks jumped, or it was put before this run, it may end sooner, and then goes on one by one.
    assert count <= right
    if not jumps and own:
        assert count == right
    assert until == NEVER or until > monotonic_ns(clock) or not count
    if until != NEVER and count:
        for each in range(begin, begin + count):
            assert not chosen.is_over(batch, each, until - 1)
    elif count:
        assert not any(chosen.is_over(batch, each, sys.maxsize) for each in range(begin, begin + count))
    if count:
        assert_left_out(chosen, batch, begin, delivered, taken, exact=own and not jumps)
    skipped = chosen.others(columns, begin, len(messages) - begin)
    assert all(chosen.is_for_others(columns, begin + at) for at in range(skipped))
    assert begin + skipped == len(messages) or not chosen.is_for_others(columns, begin + skipped)


def assert_left_out(
    chosen: DeliveryFilter, batch: Batch, begin: int, delivered: Callable[[int], bool], taken: set[int], *, exact: bool
) -> None:
    """Of what is not taken, all up to some message that is to be handled by itself may be delivered, or is skipped."""
    columns = batch.columns
    marks = bytearray(GAP if at in taken else HELD for at in range(len(columns.bodies) - begin))
    clock = chosen._clock
    until = chosen.leave_out(batch, begin, marks)
    if not marks and not exact:
        return  # one that was put later makes them all end sooner, as far as is known
    assert marks[0] == marks[-1] == HELD
    assert until > monotonic_ns(clock)
    for at, mark in enumerate(marks):
        assert (mark == GAP) is (at in taken)
        if mark == HELD:
            assert delivered(begin + at)
            assert not chosen.is_over(batch, begin + at, until - 1 if until != NEVER else sys.maxsize)
        elif mark == SKIPPED:
            assert chosen.is_for_others(columns, begin + at)
    rest = [at for at in range(begin + len(marks), len(columns.bodies)) if at - begin not in taken]
    first = next((at for at in rest if delivered(at)), None)
    if exact and first is not None:
        assert any(
            (columns.headers is not None and FOR in columns.headers[at])
            or (columns.dues is not None and columns.dues[at] > clock.now_ns())
            or chosen.is_over(batch, at, monotonic_ns(clock))
            for at in rest[: rest.index(first)]
        )


SIZES = st.lists(st.tuples(st.integers(1, 70), st.booleans(), st.sampled_from([None, None, 7]), st.integers(0, 1)))


def batches_of(sizes: list[tuple[int, bool, int | None, int]]) -> list[Batch]:
    batches, offset = list[Batch](), 0
    for at, (size, keyed, transaction, gap) in enumerate(sizes):
        offset += gap
        keys: list[bytes | None] | None = [b"k%d" % number for number in range(size)] if keyed else None
        bodies = [b"%d" % number for number in range(offset, offset + size)]
        batches.append(Batch(offset, at, Columns(bodies, keys=keys, transaction=transaction)))
        offset += size
    return batches


def rows(batches: list[Batch]) -> list[tuple[int, int, bytes, bytes | None, int | None]]:
    return [
        (
            batch.first + number,
            batch.time_ns if batch.columns.times is None else batch.columns.times[number],
            body,
            None if batch.columns.keys is None else batch.columns.keys[number],
            batch.columns.transaction,
        )
        for batch in batches
        for number, body in enumerate(batch.columns.bodies)
    ]


@given(sizes=SIZES)
def test_small_batches_become_one(sizes: list[tuple[int, bool, int | None, int]]) -> None:
    batches = batches_of(sizes)
    made = list(merged(batches))
    assert rows(made) == rows(batches)
    assert all(len(batch.columns.bodies) <= LONGEST_RUN for batch in made)
    if all(size <= 64 and transaction is None and not gap for size, _, transaction, gap in sizes):
        # As few as there may be, where each may stop short of the longest by one that would not fit in.
        assert len(made) <= -(-sum(size for size, *_ in sizes) // (LONGEST_RUN - 63))


@given(sizes=SIZES, looked=st.sets(st.integers(0, 20)))
def test_the_tail_holds_what_it_was_given(sizes: list[tuple[int, bool, int | None, int]], looked: set[int]) -> None:
    batches = batches_of(sizes)
    tail = TailCache(1 << 20)
    for at, batch in enumerate(batches):
        tail.append(batch, batch_cost(batch))
        if at in looked:
            assert tail.find(batch.first) is not None
        if at in looked and at % 2:
            single = Batch(batch.stop, 0, Columns([b"x"]))
            assert tail.find(single.first) is None
    found = list(tail.since(0))
    assert rows(found) == rows(batches)
    assert tail.cost == sum(map(batch_cost, batches)) + BATCH_OVERHEAD * len(found)
    for batch in batches:
        one = tail.find(batch.stop - 1)
        assert one is not None
        assert one.first <= batch.first
        assert one.stop >= batch.stop
    if batches:
        assert joined(batches[:1]) is batches[0]
        tail.trim(batches[-1].stop)
        assert tail.cost == 0


def looked_up_one_by_one(tail: TailCache, count: int, transaction: int | None = None) -> list[Batch]:
    """Append so many messages, each of which is looked up before the next one comes."""
    batches = [Batch(offset, offset, Columns([b"x"], transaction=transaction)) for offset in range(count)]
    for batch in batches:
        tail.append(batch, batch_cost(batch))
        assert tail.find(batch.first) is not None
    return batches


def test_what_is_looked_up_one_by_one_does_not_stay_one_by_one() -> None:
    tail = TailCache(1 << 20)
    batches = looked_up_one_by_one(tail, 505)
    found = list(tail.since(0))
    assert rows(found) == rows(batches)
    assert [len(batch.columns.bodies) for batch in found] == [250, 250, 1, 1, 1, 1, 1]
    tail.trim(250)
    assert tail.find(249) is None
    assert tail.find(250) is found[1]
    tail.trim(batches[-1].stop)
    assert tail.cost == 0


def test_what_goes_before_it_is_merged_is_not_merged() -> None:
    tail = TailCache(5 * BATCH_OVERHEAD)
    batches = looked_up_one_by_one(tail, 250)
    found = list(tail.since(0))
    assert len(found) == 1
    assert rows(found) == rows(batches)[-len(rows(found)) :]
    assert len(rows(found)) <= 5


def test_many_small_batches_take_what_they_take() -> None:
    tail = TailCache(20 * BATCH_OVERHEAD)
    looked_up_one_by_one(tail, 100, transaction=1)
    assert 10 < len(list(tail.since(0))) < 20
    assert tail.cost <= tail.limit
