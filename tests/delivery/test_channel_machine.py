"""A channel's state against a plain model, through any sequence of events, restarts and crashes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
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

from aiodq.delivery.channel_state import ChannelState
from aiodq.delivery.recovery import restored_state
from aiodq.format.journal import ChannelImage, Op, OpKind
from tests.delivery.support import image_of, in_flight, stored

if TYPE_CHECKING:
    from aiodq.delivery.state_snapshot import StateSnapshot

MAX_IN_FLIGHT = 6
WALL = 10**18


class ChannelMachine(RuleBasedStateMachine):
    """The model: who is settled, who is in flight, how often each was delivered; and what of that is on disk."""

    looking = True
    """Whether the state is looked at after each step: what leases did is entered when somebody looks."""

    @initialize(floor=st.integers(0, 5), count=st.integers(0, 8), counting=st.booleans())
    def begin(self, floor: int, count: int, *, counting: bool) -> None:
        self.counting = counting
        self.start = floor
        self.end = floor + count
        self.state = ChannelState(floor, self.end, MAX_IN_FLIGHT)
        self.state.counting = counting
        self.settled: set[int] = set()
        self.flight: dict[int, tuple[int, int]] = {}  # (attempts, delivery number)
        self.attempts: dict[int, int] = {}
        self.numbers: set[int] = set()
        self.image = ChannelImage(floor)
        self.snapshots: list[tuple[StateSnapshot, ChannelImage]] = []
        self.journal: list[Op] = []
        self.now = 10**9
        self.deliveries = 0
        self.deferred: dict[int, int] = {}
        self.deadlines: dict[int, int] = {}
        self.suspected: set[int] = set()
        self.untaken: set[int] = set()
        self.dues: dict[int, int] = {}  # of what was put with a delay, as the log has them
        self.keep()

    @property
    def open(self) -> set[int]:
        return set(range(self.start, self.end)) - self.settled

    @property
    def ready(self) -> set[int]:
        return self.open - set(self.flight) - set(self.deferred)

    @property
    def delivered(self) -> dict[int, int]:
        """How often each was, as far as it outlives the process."""
        in_flight = {offset: attempts for offset, (attempts, _) in self.flight.items() if offset not in self.untaken}
        return self.attempts | in_flight if self.counting else dict(self.attempts)

    @property
    def taken(self) -> list[int]:
        """What somebody has in hand who may settle it."""
        return sorted(self.flight.keys() - self.untaken)

    def settle(self, offsets: set[int]) -> None:
        self.settled |= offsets
        self.untaken -= offsets
        for offset in offsets:
            self.flight.pop(offset, None)
            self.attempts.pop(offset, None)
            self.deferred.pop(offset, None)
            self.deadlines.pop(offset, None)

    # --- what a channel engine does

    @rule(count=st.integers(0, 6))
    def extend(self, count: int) -> None:
        self.end += count
        self.state.extend(self.end)

    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        self.deliver_apart(count)

    def deliver_apart(self, count: int) -> None:
        for _ in range(count):
            if not self.ready or self.state.credit <= 0:
                break
            again, fresh = self.state.requeued.first(), self.state.fresh()
            offset = fresh if again is None else min(again, fresh)
            # The one order rule: the lowest offset that is ready, whether it was handed out before or not.
            assert offset == min(self.ready)
            timed = self.deliveries % 2
            self.deliveries += 1
            attempts, number = self.state.deliver(offset, self.now + 10 if timed else None)
            assert attempts == self.attempts.get(offset, 0) + 1
            assert number not in self.numbers
            self.numbers.add(number)
            self.flight[offset] = attempts, number
            self.state.orphans.pop(offset)
            self.suspected.discard(offset)
            if timed:
                self.deadlines[offset] = self.now + 10

    @rule(most=st.integers(1, 6), unfit=st.integers(0, 20), timed=st.booleans())
    def deliver_again(self, most: int, unfit: int, *, timed: bool) -> None:
        """Of what is redelivered, neighbours that were delivered equally often are handed out at once."""
        again, fresh = self.state.requeued.first(), self.state.fresh()
        deadline = self.now + 10 if timed else None
        fits = unfit.__ne__
        found = self.state.deliver_again(most, fits, deadline)
        if again is None or again > fresh or again == unfit or self.state.max_in_flight <= len(self.flight):
            assert found is None
            return
        if again == fresh:  # as a rule it is before that
            return
        assert found is not None
        offsets, attempts, number = found
        room = min(most, self.state.max_in_flight - len(self.flight))
        stop = again
        while stop < again + room and stop in self.ready and stop < fresh and stop != unfit:
            if self.attempts.get(stop, 0) != self.attempts.get(again, 0):
                break
            stop += 1
        assert offsets == range(again, stop)
        for each, offset in enumerate(offsets, number):
            assert each not in self.numbers
            assert attempts == self.attempts.get(offset, 0) + 1
            self.deliveries += 1
            self.numbers.add(each)
            self.flight[offset] = attempts, each
            self.state.orphans.pop(offset)
            self.suspected.discard(offset)
            if timed:
                self.deadlines[offset] = self.now + 10

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.taken))
        self.state.ack(offset)
        self.settle({offset})

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), counted=st.booleans())
    def nack(self, data: st.DataObject, counted: bool) -> None:
        offset = data.draw(st.sampled_from(self.taken))
        attempts, _ = self.flight.pop(offset)
        self.deadlines.pop(offset, None)
        self.attempts[offset] = attempts if counted else attempts - 1
        self.state.nack(offset, self.attempts[offset])

    @precondition(lambda self: self.taken)
    @rule(passed_over=st.integers(0, 12), most=st.integers(2, 6), timed=st.booleans(), counted=st.booleans())
    def give_all_back(self, passed_over: int, most: int, *, timed: bool, counted: bool) -> None:
        """All of it comes again, but what is settled at once; then as much as may be is handed out anew."""
        for offset in self.taken:
            attempts, _ = self.flight.pop(offset)
            self.deadlines.pop(offset, None)
            self.attempts[offset] = attempts if counted else attempts - 1
            self.state.nack(offset, self.attempts[offset])
        if passed_over in self.ready:
            self.state.expire(passed_over)
            self.settle({passed_over})
        for _ in range(3):
            self.deliver_again(most, -1, timed=timed)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.taken))
        attempts, _ = self.flight.pop(offset)
        self.attempts[offset] = attempts - 1
        self.deadlines.pop(offset, None)
        self.state.release(offset, attempts)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), wait=st.integers(1, 20), counted=st.booleans())
    def requeue_later(self, data: st.DataObject, wait: int, *, counted: bool) -> None:
        offset = data.draw(st.sampled_from(self.taken))
        attempts, _ = self.flight.pop(offset)
        attempts -= not counted
        self.attempts[offset] = attempts
        self.deadlines.pop(offset, None)
        self.deferred[offset] = self.now + 2 * wait  # an odd one would be a suspect's
        self.state.nack(offset, attempts, self.now + 2 * wait)

    @rule(waits=st.lists(st.integers(0, 20), min_size=1, max_size=4), together=st.booleans(), alike=st.booleans())
    def put_with_delays(self, waits: list[int], *, together: bool, alike: bool) -> None:
        if alike:
            waits = waits[:1] * len(waits)
        self.state.extend(self.end + len(waits))
        moments = [(offset, self.now + 2 * wait) for offset, wait in enumerate(waits, self.end) if wait]
        self.dues |= moments
        self.deferred |= moments
        if together and moments:
            self.state.defer_all([offset for offset, _ in moments], [due - 3 for _, due in moments], 3)
        for offset, due in () if together else moments:
            self.state.defer(offset, due)
        self.end += len(waits)

    @rule(passing=st.integers(0, 15), most=st.integers(1, 4))
    def time_goes_by(self, passing: int, most: int) -> None:
        self.now += 2 * passing
        due, late = list[int](), list[int]()
        while (moment := self.state.next_moment()) is not None and moment <= self.now:
            more_due, more_late = self.state.tick(self.now, most)
            assert 0 < len(more_due + more_late) <= 2 * most
            for offset in more_late:  # as the engine does before it asks again
                self.state.time_out(offset)
            due, late = due + more_due, late + more_late
        assert sorted(due) == sorted(o for o, moment in self.deferred.items() if moment <= self.now)
        assert sorted(late) == sorted(o for o, deadline in self.deadlines.items() if deadline <= self.now)
        for offset in late:
            self.attempts[offset], _ = self.flight.pop(offset)
            del self.deadlines[offset]
        self.deferred = {offset: due for offset, due in self.deferred.items() if due > self.now}

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), extend=st.integers(1, 20))
    def touch(self, data: st.DataObject, extend: int) -> None:
        offset = data.draw(st.sampled_from(self.taken))
        self.deadlines[offset] = self.now + extend
        self.state.touch(offset, self.now + extend)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.taken))
        self.state.send_dead_letter(offset)
        self.settle({offset})

    @precondition(lambda self: self.taken or self.ready)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Nobody but who gives it up has the message any more, and it has no deadline; nobody else may have had it."""
        offset = data.draw(st.sampled_from(sorted({*self.taken, *self.ready})))
        delivery = self.state.hold(offset)
        assert delivery not in self.numbers
        self.numbers.add(delivery)
        if offset in self.ready:
            self.untaken.add(offset)
        attempts, _ = self.flight.get(offset, (self.attempts.get(offset, 0), 0))
        self.flight[offset] = attempts, delivery
        self.deadlines.pop(offset, None)

    def neighbours(self, data: st.DataObject) -> range:
        """Return some offsets, one behind the other, that somebody has in hand."""
        start = stop = data.draw(st.sampled_from(self.taken))
        most = start + data.draw(st.integers(1, 4))
        while stop in self.taken and stop < most:
            stop += 1
        return range(start, stop)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def hold_neighbours(self, data: st.DataObject) -> None:
        """As a transaction does: their numbers follow one another then, and nobody is late with them."""
        held = self.neighbours(data)
        before = self.flight[held.start][1]
        # What is not handed out yet may stand beside it in a lease; or it is held, by a number that follows.
        for stop in (held.stop, max(self.taken) + 2):
            wanted = enumerate(range(held.start, stop), before)
            follow = all(self.flight.get(offset, (0, 0))[1] == number for number, offset in wanted)
            assert self.state.is_in_flight(held.start, stop, before) is follow
        first = self.state.hold(held.start, held.stop)
        assert self.state.is_in_flight(held.start, held.stop, first)
        assert not self.state.is_in_flight(held.start, held.stop, first + 1)
        assert not self.state.is_in_flight(held.start, held.stop + 1, first)
        for number, offset in enumerate(held, first):
            assert number not in self.numbers
            self.numbers.add(number)
            self.flight[offset] = self.flight[offset][0], number
            self.deadlines.pop(offset, None)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def ack_neighbours(self, data: st.DataObject) -> None:
        those, before = self.neighbours(data), self.state.counters.acked
        self.state.ack(those.start, those.stop)
        assert self.state.counters.acked == before + len(those)
        self.settle(set(those))

    @precondition(lambda self: self.untaken)
    @rule(data=st.data(), wait=st.integers(1, 20), sent=st.booleans())
    def give_up_untaken(self, data: st.DataObject, wait: int, *, sent: bool) -> None:
        """It is a letter now, or waits until that is tried again."""
        offset = data.draw(st.sampled_from(sorted(self.untaken)))
        if sent:
            self.state.send_dead_letter(offset)
            self.settle({offset})
            return
        self.untaken.discard(offset)
        self.attempts[offset], _ = self.flight.pop(offset)
        self.deferred[offset] = self.now + 2 * wait
        self.state.nack(offset, self.attempts[offset], self.now + 2 * wait)

    @precondition(lambda self: self.ready)
    @rule(data=st.data(), expired=st.booleans())
    def pass_over(self, data: st.DataObject, *, expired: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.ready)))
        if expired:
            self.state.expire(offset)
        else:
            self.state.skip(offset, offset + 1)
        self.settle({offset})

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Whatever is in nobody's hands is settled, also where it was never handed out, or is deferred."""
        edges = sorted(data.draw(st.sets(st.integers(0, self.end + 3), max_size=6)))
        ranges = list(zip(edges[0::2], edges[1::2], strict=False))
        over = {offset for start, stop in ranges for offset in range(start, stop)}
        before = self.state.counters.expired
        assert self.state.expire_ranges(ranges) == sorted(over & self.flight.keys())
        gone = (over & self.ready) | (over & self.deferred.keys())
        assert self.state.counters.expired == before + len(gone)
        self.settle(gone)

    @precondition(lambda self: self.deferred)
    @rule(data=st.data(), sent=st.booleans(), wait=st.integers(1, 20))
    def give_up_deferred(self, data: st.DataObject, wait: int, *, sent: bool) -> None:
        """It is made ready, and a letter at once, or waits until that is tried again."""
        offset = data.draw(st.sampled_from(sorted(self.deferred)))
        del self.deferred[offset]
        self.state.recall(offset)
        assert self.state.is_ready(offset)
        self.state.hold(offset)
        if sent:
            self.state.send_dead_letter(offset)
            self.settle({offset})
            return
        attempts = self.attempts.setdefault(offset, 0)
        self.deferred[offset] = self.now + 2 * wait
        self.state.nack(offset, attempts, self.now + 2 * wait)

    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.state.seek(offset)
        self.settled = set(range(self.start, offset))
        self.attempts, self.deferred, self.deadlines, self.flight = {}, {}, {}, {}
        self.untaken.clear()

    @rule(start=st.integers(0, 40), length=st.integers(0, 5))
    def lose(self, start: int, length: int) -> None:
        gone = self.open & set(range(start, start + length))
        assert self.state.lose(start, start + length) == len(gone)
        self.settle(gone)

    @rule(count=st.integers(0, 4))
    def drop(self, count: int) -> None:
        gone = sorted(self.open - set(self.flight))[:count]
        assert self.state.drop(count) == gone
        self.settle(set(gone))

    @rule(offset=st.integers(0, 40))
    def drop_below(self, offset: int) -> None:
        gone = {number for number in self.open if number < offset}
        assert self.state.miss(0, offset) == len(gone)
        self.settle(gone)

    @rule()
    def purge(self) -> None:
        assert self.state.purge() == len(self.open)
        self.settle(self.open)

    # --- what the persister does

    @rule()
    def flush(self) -> None:
        ops = self.state.take_ops(WALL + self.now, self.now)
        self.check_short(ops)
        assert self.state.take_ops() == []
        self.journal += self.pieces + ops
        self.keep()

    @rule(most=st.integers(1, 3))
    def flush_a_piece(self, most: int) -> None:
        """Short pieces, between which anything may happen, say together what one long one would."""
        ops = self.state.take_ops(WALL + self.now, self.now, most)
        assert sum(op.kind is OpKind.ACK for op in ops) <= most
        assert sum(op.kind is OpKind.DEFER for op in ops) <= most
        self.pieces += ops
        if not self.state.unjournaled.pieces:
            assert self.state.take_ops() == []
            self.journal += self.pieces
            self.keep()

    def keep(self) -> None:
        self.pieces: list[Op] = []
        self.kept_settled, self.kept_attempts = set(self.settled), self.delivered
        self.kept_hand = self.flight.keys() - self.untaken if self.counting else set[int]()
        self.kept_back = self.attempts.keys() - self.flight.keys() - self.suspected
        self.kept_deferred = {offset: due for offset, due in self.deferred.items() if offset in self.attempts}

    def check_short(self, ops: list[Op]) -> None:
        """No operation says what another one does, or could be joined with it."""
        floors = [op.offset for op in ops if op.kind is OpKind.FLOOR]
        acks = [(op.offset, op.offset + op.length) for op in ops if op.kind is OpKind.ACK]
        requeued = [offset for op in ops if op.kind is OpKind.REQUEUE for offset in op.run]
        assert len(floors) <= 1
        assert all(start > self.state.floor and start < stop for start, stop in acks)
        assert all(stop < following for (_, stop), (following, _) in pairwise(acks))
        assert requeued == sorted(set(requeued))
        assert set(requeued) <= self.open

    @rule()
    def fold(self) -> None:
        self.image, self.journal = image_of(self.state, WALL + self.now, self.now), []
        self.state.all_noted()
        assert self.state.take_ops() == []
        self.keep()

    @rule()
    def fail_to_write(self) -> None:
        """What was taken does not reach the disk, and is said again."""
        self.state.take_ops()
        self.state.renote()
        self.pieces = []

    # --- ends

    @rule()
    def reopen(self) -> None:
        self.flush()
        self.restore(self.end)

    @rule()
    def crash(self) -> None:
        """What was not taken is forgotten."""
        self.restore(self.end)

    @rule(lost=st.integers(1, 4))
    def crash_that_loses_the_logs_tail(self, lost: int) -> None:
        self.restore(max(self.end - lost, self.start))
        # As the engine does where the journal reaches behind the log.
        self.image, self.journal = image_of(self.state, WALL + self.now, self.now), []

    def restore(self, end: int) -> None:
        self.end = end
        self.dues = {offset: due for offset, due in self.dues.items() if offset < end}
        self.state = restored_state(self.image, self.journal, end, MAX_IN_FLIGHT, wall=WALL + self.now, now=self.now)
        self.state.counting = self.counting
        self.settled = {offset for offset in self.kept_settled if offset < end}
        self.attempts = {offset: n for offset, n in self.kept_attempts.items() if offset in self.open}
        deferred = {o: due for o, due in self.kept_deferred.items() if o in self.open and due > self.now}
        for offset, due in self.dues.items():
            if due > self.now and not self.state.attempts(offset):  # as the engine does with what the log says
                self.state.defer(offset, due)
                if offset in self.open:
                    deferred.setdefault(offset, due)
        self.deferred, self.deadlines = deferred, {}
        self.flight, self.numbers = {}, set()
        self.untaken.clear()
        suspected = set(self.state.orphans)
        assert self.kept_hand & self.open <= suspected <= self.open - self.kept_back
        assert not any(waited for _, waited in self.state.orphans.items())
        self.suspected = set(suspected)
        self.keep()
        self.kept_hand = set(suspected)

    # --- what always holds

    @precondition(lambda self: self.looking)
    @invariant()
    def counts_are_exact(self) -> None:
        assert self.state.depth == len(self.open)
        assert self.state.ready == len(self.ready)
        assert self.state.credit == max(self.state.max_in_flight - len(self.flight), 0)
        assert self.state.end == max(self.end, self.state.floor)

    @precondition(lambda self: self.looking)
    @invariant()
    def in_flight_is_exact(self) -> None:
        assert in_flight(self.state) == {offset: number for offset, (_, number) in self.flight.items()}

    @precondition(lambda self: self.looking)
    @invariant()
    def deferred_is_exact(self) -> None:
        assert dict(self.state.deferred) == self.deferred
        moments = [*self.deferred.values(), *self.deadlines.values()]
        assert self.state.next_moment() == min(moments, default=None)

    @precondition(lambda self: self.looking)
    @invariant()
    def the_next_is_ready(self) -> None:
        again, fresh = self.state.requeued.first(), self.state.fresh()
        assert again is None or again in self.ready
        assert fresh == self.state.end or fresh in self.ready
        assert (again is not None or fresh < self.state.end) == bool(self.ready)
        assert all(offset in self.ready for offset in self.state.requeued.some(3))

    @precondition(lambda self: self.looking)
    @invariant()
    def settled_is_exact(self) -> None:
        state = self.state
        assert state.floor == min(self.open, default=self.end)
        members = {offset for start, stop in state.settled for offset in range(start, stop)}
        assert members == {offset for offset in self.settled if offset > state.floor}

    @precondition(lambda self: self.looking)
    @invariant()
    def the_image_tells_all(self) -> None:
        snapshot = self.state.snapshot(WALL + self.now, self.now)
        image = stored(snapshot)
        assert all(stored(before) == was for before, was in self.snapshots), "what happens later changes a snapshot"
        self.snapshots = [*self.snapshots[-2:], (snapshot, image)]
        twin = restored_state(image, (), self.end, MAX_IN_FLIGHT, wall=WALL + self.now, now=self.now)
        assert twin.depth == len(self.open)
        assert image_of(twin).attempts == {offset: n for offset, n in self.delivered.items() if n > 0}

    @precondition(lambda self: self.looking)
    @invariant()
    def what_is_on_disk_may_be_read_twice(self) -> None:
        once = restored_state(self.image, self.journal, self.end, MAX_IN_FLIGHT)
        twice = restored_state(self.image, self.journal * 2, self.end, MAX_IN_FLIGHT)
        assert image_of(once) == image_of(twice)


def test_any_sequence() -> None:
    run_state_machine_as_test(ChannelMachine, settings=settings(max_examples=20, stateful_step_count=40))


def test_any_sequence_in_blocks_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiodq.delivery.offset_map._BITS", 1)
    run_state_machine_as_test(ChannelMachine, settings=settings(max_examples=20, stateful_step_count=40))


@pytest.mark.slow
def test_any_sequence_for_long() -> None:
    run_state_machine_as_test(ChannelMachine, settings=settings(max_examples=2_000, stateful_step_count=50))
