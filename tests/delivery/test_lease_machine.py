"""A channel's state where most is handed out by leases, against the same model: nobody can tell the difference."""

from __future__ import annotations

from itertools import repeat

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from aiodq.delivery.channel_state import ChannelState
from aiodq.delivery.leases import ACKED, APART, GAP, HELD, LONGEST, MEASURED, SETTLED, SKIPPED, Lease, indexes
from tests.delivery.test_channel_machine import ChannelMachine

SECOND = 10**9
STEPS = st.lists(st.tuples(st.sampled_from("dddgggaaatttnxsrpppfff"), st.integers(0, 9)), min_size=4, max_size=24)


class LeaseMachine(ChannelMachine):
    """Beside the model: which place of which lease each delivery by a lease has, whoever may settle it by then."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: Lease | None = None
        self.handles: list[tuple[Lease, int]] = []
        self.noted = 0

    def hand_out(self, count: int) -> None:
        lease = self.lease
        assert lease is not None
        while count and (lease.next < lease.limit or lease.before_gap()):
            if lease.next >= lease.limit:
                self.skip_to(lease.runs[-1][0])
                lease.leap()
                assert lease.limit == lease.next < lease.room
                lease.limit = lease.room
            offset, number = lease.first + lease.next, lease.number + lease.next
            assert offset == min(self.ready)
            assert len(self.flight) < self.state.max_in_flight
            assert number not in self.numbers
            self.numbers.add(number)
            self.flight[offset] = 1, number
            if lease.timeout is not None:
                self.deadlines[offset] = self.now + lease.timeout
            self.handles.append((lease, lease.next))
            lease.next += 1
            lease.last = self.now / SECOND
            count -= 1

    def skip_to(self, index: int) -> None:
        """What is not wanted before the next message of the lease is settled as soon as it is passed over."""
        lease = self.lease
        assert lease is not None
        skipped = {lease.first + at for at in range(lease.next, index) if lease.marks[at] == SKIPPED}
        assert skipped <= self.ready
        self.settle(skipped)

    @initialize(floor=st.integers(0, 5), count=st.integers(4, 12), counting=st.booleans())
    def begin(self, floor: int, count: int, *, counting: bool) -> None:
        super().begin(floor=floor, count=count, counting=counting)

    def _work(self, steps: list[tuple[str, int]]) -> None:
        """What happens most, many steps at a time: deliver, go on, nack, ack, let time go by."""
        for step, number in steps:
            mine = self.taken
            if step == "d":
                unwanted = {at for at in range(1, 9) if (number * 37 >> at) & 1}
                self.deliver_by_a_lease(number % 3 + 1, 2 + number % 7, None if number % 2 else 5 + number, unwanted)
            elif step == "p":
                self.deliver_with_gaps(number)
            elif step == "g" and self.lease is not None:
                # As a consumer that does not look at the state in between.
                self.hand_out(number % 2 + 1)
            elif step == "n" and mine:
                offset = mine[number % len(mine)]
                self.attempts[offset], _ = self.flight.pop(offset)
                self.deadlines.pop(offset, None)
                self.state.nack(offset, self.attempts[offset])
            elif step == "a" and (held := self.in_hand()):
                self.ack_by_its_mark(*held[number % len(held)])
            elif step == "f":
                self.consume_in_turn(number)
            elif step in "stxr":
                self._work_apart(step, number)

    def _work_apart(self, step: str, number: int) -> None:
        """What happens beside leases."""
        if step == "s" and self.ready:
            offset = sorted(self.ready)[number % len(self.ready)]
            self.state.expire(offset)
            self.settle({offset})
        elif step == "t":
            self.time_goes_by(number % 5, number % 4 + 1)
        elif step == "x":
            self.deliver_apart(1)
        elif step == "r":
            self.deliver_again(number % 4 + 1, number * 2, timed=number % 2 > 0)

    # Of all the rules, about every third that is chosen is to be this.
    work1, work2, work3, work4, work5, work6, work7, work8, work9 = map(rule(steps=STEPS), repeat(_work, 9))

    def deliver_by_a_lease(self, count: int, size: int, timeout: int | None, unwanted: set[int]) -> None:
        """As a channel's engine does; if nothing is ready, more comes. Every other lease may have gaps."""
        if not self.ready:
            self.extend(size)
        offset = self.state.fresh()
        if self.requeued_first():
            self.deliver_apart(count)
            return
        if not self.goes_on_with(offset):
            run = self.state.plain_run(offset, offset + size)
            assert all(each in self.ready and not self.attempts.get(each) for each in range(offset, offset + run))
            if not run:
                self.deliver_apart(1)
                return
            marks = self.with_gaps(offset, size, unwanted) if size % 2 else bytearray([HELD] * run)
            self.lease = Lease(offset, len(marks), timeout)
            self.lease.leave_out(marks)
            self.state.begin(self.lease)
        assert self.lease is not None
        self.state.reach(self.lease)
        self.hand_out(count)

    def consume_in_turn(self, number: int) -> None:
        """One message after the other, as `async for` does, each noted before it is processed."""
        for _ in range(number // 2 + 1):
            self.deliver_by_a_lease(1, 12, None, set())
            if self.counting:
                self.note_what_was_handed_out()
            if (held := self.in_hand()) and number % 4:
                self.ack_by_its_mark(*held[-1])

    def deliver_with_gaps(self, number: int) -> None:
        """Some of what comes next is settled, or put with a delay, before a lease of it is made."""
        if not self.requeued_first():
            self.extend(number % 4)
            self.put_with_delays([0, number, 0, number % 3], together=number % 2 > 0, alike=False)
            self.extend(3)
            offset = self.state.fresh()
            for at in {number % 5 + 1, number % 3 + 4} & {each - offset for each in self.ready}:
                self.state.expire(offset + at)
                self.settle({offset + at})
        self.deliver_by_a_lease(number % 4 + 2, 11, 5 + number, {number % 3 + 1, number % 4 + 2, number % 5 + 4})

    def requeued_first(self) -> bool:
        again = self.state.requeued.first()
        return again is not None and again <= self.state.fresh()

    def goes_on_with(self, offset: int) -> bool:
        lease = self.lease
        if lease is None or not lease.open:
            return False
        before = lease.next
        if not lease.goes_on_with(offset):
            return False
        after, lease.next = lease.next, before
        self.skip_to(after)
        lease.next = after
        return True

    def with_gaps(self, offset: int, size: int, unwanted: set[int]) -> bytearray:
        """Return the marks of a lease that goes on behind what is taken, or not wanted."""
        marks = self.state.run_with_gaps(offset, offset + size)
        for at, mark in enumerate(marks):
            assert mark == (HELD if offset + at in self.ready else GAP)
            assert mark == GAP or not self.attempts.get(offset + at)
            if mark == HELD and at in unwanted:
                marks[at] = SKIPPED
        del marks[marks.rfind(HELD) + 1 :]
        return marks

    @precondition(lambda self: self.lease is not None)
    @rule(count=st.integers(1, 2))
    def go_on(self, count: int) -> None:
        self.hand_out(count)

    @rule(passing=st.integers(0, 15), most=st.integers(1, 4))
    def time_goes_by(self, passing: int, most: int) -> None:
        """Whoever hands out notices."""
        if self.lease is not None and self.lease.open:
            self.lease.turn()
        super().time_goes_by(passing, most)

    def in_hand(self) -> list[tuple[Lease, int]]:
        return [(lease, index) for lease, index in self.handles if lease.marks[index] in {HELD, MEASURED}]

    def ack_by_its_mark(self, lease: Lease, index: int) -> None:
        lease.marks[index] = ACKED
        if lease.clean:
            self.state.acked(lease)
        self.settle({lease.first + index})

    @rule()
    def ack_all_that_is_in_hand(self) -> None:
        for lease, index in self.in_hand():
            self.ack_by_its_mark(lease, index)

    @precondition(lambda self: self.in_hand())
    @rule(data=st.data())
    def measure(self, data: st.DataObject) -> None:
        lease, index = data.draw(st.sampled_from(self.in_hand()))
        lease.marks[index] = MEASURED

    @rule(everything=st.booleans(), data=st.data())
    def part(self, *, everything: bool, data: st.DataObject) -> None:
        if everything:
            for offset in sorted(self.flight):
                self.set_apart(offset)
        elif self.flight:
            self.set_apart(data.draw(st.sampled_from(sorted(self.flight))))

    def set_apart(self, offset: int) -> None:
        self.state._look()
        self.state._leases.part(offset)

    @precondition(lambda self: self.counting)
    @rule()
    def note_what_was_handed_out(self) -> None:
        """Where acks come in order it is said without counting, and all of it, in as few operations as later."""
        ops = self.state.handed_ops()
        if ops is None:
            self.flush()
            return
        self.journal += self.pieces + ops
        self.keep()
        self.noted += 1
        if self.looking:
            self.check_short(ops)
            assert self.state.take_ops() == []

    @rule(most=st.integers(1, 8))
    def bound(self, most: int) -> None:
        """Never below what is in flight: the model's invariants do not know of that."""
        self.state.max_in_flight = max(most, len(self.flight))
        self.state.close_lease()

    @rule(looking=st.booleans())
    def look(self, *, looking: bool) -> None:
        """For some time nobody looks, so that much is entered at once."""
        self.looking = looking

    def restore(self, end: int) -> None:
        super().restore(end)
        self.lease, self.handles = None, []

    # --- what always holds

    @invariant()
    def who_has_a_message_knows_whether_it_is_his(self) -> None:
        for lease, index in self.handles:
            mark, offset = lease.marks[index], lease.first + index
            mine = self.flight.get(offset, (0, 0))[1] == lease.number + index
            assert mark in {HELD, MEASURED, APART, ACKED, SETTLED}
            assert mine or mark not in {HELD, MEASURED}
            assert not (mine and mark in {ACKED, SETTLED})

    @precondition(lambda self: self.looking)
    @invariant()
    def each_delivery_is_found(self) -> None:
        for offset in self.open:
            assert self.state.delivery(offset) == self.flight.get(offset, (0, None))[1]
        assert self.state.flying == len(self.flight)


def test_what_is_settled_in_the_middle_of_a_lease_is_not_handed_out() -> None:
    state = ChannelState(0, 10, 100)
    lease = Lease(0, state.plain_run(0, 10), None)
    state.begin(lease)
    state.reach(lease)
    lease.next = 2
    state.expire(5)
    state.reach(lease)
    assert (lease.limit, state.fresh(), state.plain_run(2, 10), state.flying) == (2, 2, 3, 2)


def test_what_comes_again_is_looked_for_before_more_is_handed_out() -> None:
    state = ChannelState(0, 10, 100)
    lease = Lease(0, state.plain_run(0, 10), None)
    state.begin(lease)
    state.reach(lease)
    lease.next = 3
    state.nack(1, 1)
    assert (lease.limit, state.requeued.first()) == (3, 1)


def test_what_comes_again_is_looked_for_before_the_lease_goes_on_behind_a_gap() -> None:
    state = ChannelState(0, 10, 100)
    lease = Lease(0, 6, None)
    lease.leave_out(bytearray([HELD, HELD, SKIPPED, SKIPPED, HELD, HELD]))
    state.begin(lease)
    state.reach(lease)
    lease.next = lease.room
    assert (lease.next, lease.before_gap()) == (2, True)
    state.nack(0, 1)
    assert (lease.before_gap(), state.requeued.first(), state.depth) == (False, 0, 10)
    state.deliver(0)
    state.reach(lease)
    assert lease.goes_on_with(2)
    assert (lease.next, lease.edge) == (4, 6)
    lease.next += 1
    assert (state.fresh(), state.depth, state.flying, state.counters.filtered) == (5, 8, 3, 2)


def test_at_the_end_everything_in_flight_has_an_entry_of_its_own() -> None:
    state = ChannelState(0, 10, 100)
    lease = Lease(0, state.plain_run(0, 10), 1)
    state.begin(lease)
    state.reach(lease)
    lease.next = 4
    lease.marks[1] = ACKED
    state.acked(lease)
    state.deliver(7)
    state.detach()
    assert [state.delivery(offset) for offset in (0, 1, 2, 3, 7)] == [1, None, 3, 4, 11]
    assert (state.flying, state.next_moment()) == (4, None)
    assert not {HELD, MEASURED} & set(lease.marks[:4])


def handed_out(state: ChannelState, stop: int, *, at: int = 0, timeout: int | None = None) -> Lease:
    """Hand out all of a lease up to this offset, at this second."""
    first = state.fresh()
    lease = Lease(first, state.plain_run(first, stop), timeout)
    state.begin(lease)
    state.reach(lease)
    assert lease.limit == len(lease.marks)
    lease.next, lease.last = lease.limit, float(at)
    return lease


def test_what_was_handed_out_in_an_earlier_turn_is_late_earlier() -> None:
    state = ChannelState(0, 10, 100)
    lease = handed_out(state, 5, at=1, timeout=7)
    lease.next = 2
    lease.turn()
    lease.next, lease.last = 5, 2.0
    assert state.next_moment() == SECOND + 7
    assert state.tick(SECOND + 7, 1) == ([], [0])
    lease.marks[1] = ACKED
    state.acked(lease)
    assert state.next_moment() == 2 * SECOND + 7
    assert state.tick(2 * SECOND + 6) == ([], [])
    assert state.tick(2 * SECOND + 7) == ([], [2, 3, 4])


@pytest.mark.parametrize("second", [7, 3 * SECOND])
def test_of_several_leases_the_one_that_is_late_first_says_when(second: int) -> None:
    """The timeout may have been changed in between."""
    state = ChannelState(0, 60, 100)
    timeouts = {1: 3 * SECOND, 2: second}
    for at, timeout in timeouts.items():
        handed_out(state, 20 * at, at=at, timeout=timeout)
    for deadline, at in sorted((at * SECOND + timeout, at) for at, timeout in timeouts.items()):
        assert state.next_moment() == deadline
        assert state.tick(deadline) == ([], list(range(20 * at - 20, 20 * at)))
    assert state.next_moment() is None


def test_what_is_in_flight_behind_a_ready_message_is_not_dropped() -> None:
    state = ChannelState(3, 12, 100)
    handed_out(state, 9)
    state.nack(5, 1)
    assert state.drop(2) == [5, 9]
    assert state.expire_ranges([(4, 12)]) == [4, 6, 7, 8]
    assert (state.flying, state.depth) == (5, 5)


def test_after_a_seek_each_message_in_flight_is_found_however_many_leases_there_were() -> None:
    state = ChannelState(0, 200, 1000)
    for stop in range(20, 140, 20):
        handed_out(state, stop)
    state.seek(0)
    again = handed_out(state, 30)
    assert [state.delivery(offset) for offset in range(31)] == [*range(again.number, again.number + 30), None]


@pytest.mark.timeout(300)
def test_any_sequence() -> None:
    run_state_machine_as_test(LeaseMachine, settings=settings(max_examples=25, stateful_step_count=25))


def test_any_sequence_where_leases_of_a_few_messages_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of very many are: several at a time, before and behind one another, some closed."""
    monkeypatch.setattr("aiodq.delivery.leases._FEW", 0)
    run_state_machine_as_test(LeaseMachine, settings=settings(max_examples=15, stateful_step_count=25))


@pytest.mark.slow
def test_any_sequence_for_long() -> None:
    run_state_machine_as_test(LeaseMachine, settings=settings(max_examples=800, stateful_step_count=50))


@pytest.mark.parametrize("stop", [0, 7, LONGEST, LONGEST + 1, LONGEST + 300])
def test_indexes_are_those_asked_for_even_beyond_the_longest_lease(stop: int) -> None:
    for first in (0, 3, LONGEST - 1, LONGEST):
        assert indexes(first, stop) == list(range(first, stop))
