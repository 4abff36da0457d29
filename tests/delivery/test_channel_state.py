"""A channel's state, example by example."""

from __future__ import annotations

import tracemalloc

import pytest

from aiodq.delivery.channel_state import ChannelState
from aiodq.delivery.leases import ACKED, GAP, HELD, Lease
from aiodq.delivery.recovery import restored_state
from aiodq.delivery.requeued import Requeued
from aiodq.format.journal import ChannelImage, Op, OpKind, decode_checkpoint, encode_block, encode_checkpoint
from tests.delivery.support import image_of, in_flight, stored


def channel(floor: int = 0, end: int = 10, max_in_flight: int = 100) -> ChannelState:
    return ChannelState(floor, end, max_in_flight)


def take(state: ChannelState) -> int:
    """Hand out the next message, as a channel engine does."""
    again = state.requeued.first()
    offset = state.fresh() if again is None else again
    assert offset < state.end
    state.deliver(offset)
    return offset


def take_all(state: ChannelState, count: int) -> list[int]:
    return [take(state) for _ in range(count)]


class TestLeases:
    def test_acks_in_many_leases_are_counted_some_at_a_time(self) -> None:
        state = channel(end=1000, max_in_flight=1000)
        leases = []
        for first in range(0, 1000, 10):
            lease = Lease(first, 10, None)
            state.begin(lease)
            state.reach(lease)
            lease.next = 10
            leases.append(lease)
        state.close_lease()
        for number, lease in enumerate(leases, 1):
            lease.marks[3] = ACKED
            state.acked(lease)
            assert sum(not each.clean for each in leases) <= 16
            assert sum(each.marks[3] == ACKED for each in leases) <= 16
            if number == 50:
                assert len(state.settled) == 50
        assert state.depth == 900


class TestBeginning:
    def test_everything_from_the_floor_to_the_end_is_ready(self) -> None:
        state = channel(3, 7)
        assert (state.depth, state.ready, state.fresh(), state.requeued.first()) == (4, 4, 3, None)

    def test_an_end_below_the_floor_is_an_empty_channel(self) -> None:
        state = channel(7, 3)
        assert (state.depth, state.end) == (0, 7)

    def test_the_log_grows_and_never_shrinks(self) -> None:
        state = channel(0, 5)
        state.extend(8)
        state.extend(6)
        assert (state.end, state.depth) == (8, 8)


class TestOrder:
    def test_offsets_come_in_order(self) -> None:
        assert take_all(channel(), 10) == list(range(10))

    def test_what_is_requeued_comes_ahead_of_newer_messages_in_offset_order(self) -> None:
        state = channel()
        take_all(state, 6)
        for offset in (4, 1, 3):
            state.nack(offset, 1)
        assert take_all(state, 5) == [1, 3, 4, 6, 7]

    def test_what_is_settled_elsewhere_is_stepped_over(self) -> None:
        state = channel()
        state.lose(2, 5)
        assert take_all(state, 4) == [0, 1, 5, 6]

    def test_a_requeued_message_that_was_dropped_does_not_come(self) -> None:
        state = channel()
        take_all(state, 3)
        state.nack(1, 1)
        state.lose(1, 2)
        assert state.requeued.first() is None
        assert take(state) == 3

    def test_a_message_requeued_twice_comes_once(self) -> None:
        state = channel()
        take_all(state, 2)
        state.nack(0, 1)
        state.nack(1, 1)
        assert take(state) == 0
        state.nack(0, 2)
        assert take_all(state, 3) == [0, 1, 2]

    def test_what_was_given_up_before_its_turn_is_remembered_no_longer_than_until_then(self) -> None:
        state = ChannelState(0, 3_000, 3_000)
        for offset in range(1, 3_000, 3):
            state.hold(offset)
            state.send_dead_letter(offset)
        while (offset := state.fresh()) < 3_000:
            lease = Lease(offset, state.plain_run(offset, 3_000), None)
            state.begin(lease)
            state.reach(lease)
            lease.next = lease.limit
        assert state.flying == 2_000
        assert list(state._passed) == []


class TestHeld:
    @pytest.mark.parametrize("deadline", [None, 7])
    def test_what_is_let_go_is_late_after_its_new_deadline_if_it_has_one(self, deadline: int | None) -> None:
        state = channel()
        _, first = state.deliver(0)
        state.deliver(1)
        state.hold(0, 2)
        state.unhold(0, 2, first, deadline)
        assert in_flight(state) == {0: first, 1: first + 1}
        state.touch(1, 9)
        assert state.tick(8) == ([], [] if deadline is None else [0])
        assert state.tick(9) == ([], [1])


class TestAttempts:
    def test_the_first_delivery_is_attempt_one(self) -> None:
        assert channel().deliver(0)[0] == 1

    def test_a_requeue_counts_and_a_release_does_not(self) -> None:
        state = channel()
        attempts, _ = state.deliver(0)
        state.nack(0, attempts)
        attempts, _ = state.deliver(0)
        assert attempts == 2
        state.release(0, attempts)
        assert state.deliver(0)[0] == 2

    def test_each_delivery_has_a_number_of_its_own(self) -> None:
        state = channel()
        numbers = [state.deliver(0)[1]]
        state.nack(0, 1)
        numbers += [state.deliver(offset)[1] for offset in (0, 1, 2)]
        assert len(set(numbers)) == 4

    def test_attempts_survive_a_restart_and_end_with_the_ack(self) -> None:
        state = channel()
        take_all(state, 2)
        state.nack(0, 3)
        state.nack(1, 5)
        state.deliver(0)
        state.ack(0)
        restored = restored_state(ChannelImage(0), state.take_ops(), 10, 100)
        assert image_of(restored).attempts == {1: 5}
        assert restored.deliver(1)[0] == 6


class TestCredit:
    def test_it_is_what_may_still_be_handed_out(self) -> None:
        state = channel(max_in_flight=3)
        take_all(state, 2)
        assert state.credit == 1
        state.ack(0)
        assert state.credit == 2

    def test_purged_messages_give_their_credit_back(self) -> None:
        state = channel(max_in_flight=3)
        take_all(state, 3)
        assert state.purge() == 10
        assert (state.credit, state.depth, in_flight(state)) == (3, 0, {})


class TestDropping:
    def test_the_oldest_ready_go_and_what_is_in_flight_stays(self) -> None:
        state = channel()
        take_all(state, 2)
        assert state.drop(3) == [2, 3, 4]
        assert (state.depth, sorted(in_flight(state)), state.ready) == (7, [0, 1], 5)
        assert state.counters.dropped == 3
        assert take(state) == 5

    def test_requeued_messages_are_the_oldest_ready_ones(self) -> None:
        state = channel()
        take_all(state, 4)
        state.nack(1, 1)
        assert state.drop(2) == [1, 4]
        assert sorted(in_flight(state)) == [0, 2, 3]
        assert take(state) == 5

    def test_if_asked_none_that_comes_after_one_in_flight(self) -> None:
        state = channel()
        take_all(state, 4)
        state.nack(0, 1)
        state.nack(1, 1)
        assert state.drop(3, spare=True) == [0, 1]
        assert state.drop(3, spare=True) == []
        assert (state.floor, state.depth) == (2, 8)

    def test_no_more_than_there_is(self) -> None:
        state = channel(0, 3)
        take(state)
        state.drop(99)
        assert (state.depth, state.ready, state.counters.dropped) == (1, 0, 2)

    def test_below_an_offset_in_flight_or_not(self) -> None:
        state = channel()
        take_all(state, 3)
        state.ack(1)
        assert state.miss(0, 5) == 4
        assert (state.floor, state.depth, in_flight(state)) == (5, 5, {})
        assert state.miss(0, 5) == 0

    def test_below_an_offset_behind_the_end(self) -> None:
        state = channel(0, 4)
        assert state.miss(0, 99) == 4
        assert (state.floor, state.end, state.depth) == (4, 4, 0)

    @pytest.mark.parametrize(("start", "stop", "lost"), [(0, 3, 3), (8, 99, 2), (5, 5, 0), (6, 2, 0), (20, 30, 0)])
    def test_lost_offsets_are_counted_once(self, start: int, stop: int, lost: int) -> None:
        state = channel()
        assert state.lose(start, stop) == lost
        assert state.lose(start, stop) == 0
        assert (state.counters.lost, state.depth) == (lost, 10 - lost)


class TestOps:
    def test_acks_in_order_are_one_floor(self) -> None:
        state = channel()
        for offset in take_all(state, 6):
            state.ack(offset)
        assert state.take_ops() == [Op(OpKind.FLOOR, 6)]
        assert state.take_ops() == []

    def test_acks_behind_a_hole_are_ranges(self) -> None:
        state = channel()
        take_all(state, 9)
        for offset in (7, 2, 4, 3, 8):
            state.ack(offset)
        assert state.take_ops() == [Op(OpKind.ACK, 2, 3), Op(OpKind.ACK, 7, 2)]

    def test_a_range_longer_than_an_operation_holds_is_several(self) -> None:
        state = channel(end=2**34)
        take(state)
        assert state.purge(1, 2**33 + 5) == 2**33 + 4
        ops = state.take_ops()
        assert ops == [Op(OpKind.ACK, 1, 2**32 - 1), Op(OpKind.ACK, 2**32, 2**32 - 1), Op(OpKind.ACK, 2**33 - 1, 6)]
        assert restored_state(ChannelImage(0), ops, 2**34, 100).depth == state.depth
        assert state.take_ops() == []

    def test_a_range_of_more_messages_than_there_ever_are_is_taken_in_pieces(self) -> None:
        state = channel(end=2**62)
        take(state)
        state.purge(1)
        first, second = state.take_ops(), state.take_ops()
        assert len(first) == len(second) == 1000
        assert second[0].offset == first[-1].offset + first[-1].length
        assert state.unjournaled.pieces == 1

    def test_a_hole_that_closes_is_told_by_the_floor_alone(self) -> None:
        state = channel()
        take_all(state, 4)
        for offset in (1, 2, 3, 0):
            state.ack(offset)
        assert state.take_ops() == [Op(OpKind.FLOOR, 4)]

    def test_delivering_says_nothing(self) -> None:
        state = channel()
        take_all(state, 5)
        assert state.take_ops() == []

    def test_a_requeue_that_was_acked_meanwhile_says_nothing_of_itself(self) -> None:
        state = channel()
        take_all(state, 3)
        state.nack(2, 1)
        state.deliver(2)
        state.ack(2)
        assert state.take_ops() == [Op(OpKind.ACK, 2, 1)]

    def test_several_requeues_of_one_message_are_one_op(self) -> None:
        state = channel()
        for attempts in (1, 2, 3):
            state.deliver(0)
            state.nack(0, attempts)
        assert state.take_ops() == [Op(OpKind.REQUEUE, 0, value=3)]

    def test_what_did_not_reach_the_disk_can_be_said_again(self) -> None:
        state = channel(2, 12)
        take_all(state, 8)
        for offset in (2, 3, 6, 9):
            state.ack(offset)
        state.nack(4, 2)
        state.take_ops()
        state.renote()
        restored = restored_state(ChannelImage(2), state.take_ops(), 12, 100)
        assert image_of(restored) == image_of(state)
        assert restored.depth == state.depth

    def test_a_seek_that_another_one_made_void_is_told_by_its_number(self) -> None:
        state = channel()
        for offset, change in ((3, 7), (5, 0), (4, 8), (6, 0)):
            state.seek(offset, change=change)
        assert state.take_ops() == [Op(OpKind.FLOOR, 0, value=7), Op(OpKind.SEEK, 6, value=8)]
        state.seek(2)
        assert state.take_ops() == [Op(OpKind.SEEK, 2)]

    def test_the_numbers_of_seeks_are_said_again_if_their_checkpoint_did_not_reach_the_disk(self) -> None:
        state = channel()
        state.seek(3, change=7)
        state.all_noted()
        state.seek(5, change=8)
        state.all_noted()
        state.renote()
        assert state.take_ops() == [Op(OpKind.FLOOR, 0, value=7), Op(OpKind.SEEK, 5, value=8)]


class TestRestoring:
    def test_what_was_in_flight_is_ready_again(self) -> None:
        state = channel()
        take_all(state, 4)
        state.ack(1)
        restored = restored_state(ChannelImage(0), state.take_ops(), 10, 100)
        assert (in_flight(restored), restored.depth, restored.ready) == ({}, 9, 9)
        assert take_all(restored, 3) == [0, 2, 3]

    def test_what_names_messages_that_the_log_lost_is_dropped(self) -> None:
        ops = [Op(OpKind.ACK, 5, 4), Op(OpKind.REQUEUE, 7, value=2), Op(OpKind.REQUEUE, 4, value=2)]
        restored = restored_state(ChannelImage(0), ops, 6, 100)
        restored.extend(10)
        assert restored.depth == 9
        assert image_of(restored).attempts == {4: 2}
        assert take_all(restored, 9) == [0, 1, 2, 3, 4, 6, 7, 8, 9]

    @pytest.mark.parametrize(("noted", "counted"), [(2**32, 2**31 - 1), (-1, 0)])
    def test_a_hostile_number_of_deliveries_fits_into_a_checkpoint(self, noted: int, counted: int) -> None:
        restored = restored_state(ChannelImage(0), [Op(OpKind.REQUEUE, 4, value=noted)], 10, 100)
        assert image_of(restored).attempts.get(4, 0) == counted

    @pytest.mark.parametrize(
        "op",
        [
            Op(OpKind.ACK, 2**63 - 1, 1),
            Op(OpKind.ACK, 2**64 - 1, 2**32 - 1),
            Op(OpKind.ACK, 2**64 - 1, 0),
            Op(OpKind.ACK, 5, 0),
            Op(OpKind.REQUEUE, 2**64 - 1, 2**32 - 1, 3, in_hand=True),
            Op(OpKind.DEFER, 2**64 - 1, 2**32 - 2, -(2**63)),
        ],
    )
    def test_what_a_hostile_journal_says_of_no_message_is_ignored(self, op: Op) -> None:
        ops = [Op(OpKind.ACK, 2**62, 2**31), op, Op(OpKind.ACK, 4)]
        restored = restored_state(ChannelImage(0), ops, 10, 100)
        restored.extend(2**63 - 2)
        assert list(restored.settled) == [(4, 5)]
        assert stored(restored.snapshot()).ranges == [(4, 5)]

    @pytest.mark.parametrize("kind", [OpKind.FLOOR, OpKind.SEEK])
    def test_a_hostile_floor_is_the_end(self, kind: OpKind) -> None:
        restored = restored_state(ChannelImage(0), [Op(kind, 2**64 - 1)], 10, 100)
        assert (restored.floor, restored.depth) == (10, 0)

    def test_a_run_behind_the_end_costs_nothing(self) -> None:
        """Of each run that a few bytes name, tens of thousands of messages would be entered, to be dropped."""
        ops = [Op(OpKind.REQUEUE, 8, 2**16, 2), *(Op(OpKind.REQUEUE, n << 16, 2**16, 2) for n in range(1, 30))]
        tracemalloc.start()
        try:
            restored = restored_state(ChannelImage(0), ops, 10, 100)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        assert image_of(restored).attempts == {8: 2, 9: 2}

    @pytest.mark.parametrize("due", [2**63 - 1, 2**63 - 2, -(2**63)])
    def test_a_hostile_due_time_fits_into_a_checkpoint_and_a_journal(self, due: int) -> None:
        """Also of a channel that notes it later than it read it, or as that of no suspect any more."""
        image = ChannelImage(0, [], {4: 1}, {4: due}, noted_ns=-(2**63))
        restored = restored_state(image, [], 10, 100, wall=5, now=7)
        again, _ = decode_checkpoint(bytes(encode_checkpoint(restored.snapshot(2**40, 7), 1)))
        assert again.deferred[4] >= min(due, 2**63 - 2) - 1
        restored.renote()
        encode_block(restored.take_ops(2**40, 7), 1)

    def test_a_floor_behind_the_end_is_the_end(self) -> None:
        restored = restored_state(ChannelImage(20), [], 6, 100)
        restored.extend(8)
        assert take_all(restored, 2) == [6, 7]

    def test_ranges_that_touch_the_floor_move_it(self) -> None:
        restored = restored_state(ChannelImage(2, [(4, 6)]), [Op(OpKind.ACK, 2, 2)], 10, 100)
        assert (restored.floor, restored.depth) == (6, 4)

    def test_it_has_nothing_to_say(self) -> None:
        ops = [Op(OpKind.FLOOR, 3), Op(OpKind.ACK, 5, 1), Op(OpKind.REQUEUE, 4, value=1)]
        assert restored_state(ChannelImage(0), ops, 10, 100).take_ops() == []


def test_settled_all() -> None:
    state = channel()
    take_all(state, 8)
    for offset in (0, 1, 4, 5):
        state.ack(offset)
    assert state.settled_all(0, 2)
    assert state.settled_all(4, 6)
    assert state.settled_all(1, 1)
    assert not state.settled_all(0, 3)
    assert not state.settled_all(3, 6)
    assert not state.settled_all(5, 7)


def test_what_is_held_ahead_of_others_hides_none_of_them() -> None:
    state = ChannelState(0, 10, 100)
    state.hold(5)
    assert (state.fresh(), state.plain_run(0, 10)) == (0, 5)
    assert state.run_with_gaps(0, 10) == bytearray([HELD] * 5 + [GAP] + [HELD] * 4)
    for offset in range(5):
        assert state.fresh() == offset
        state.deliver(offset)
    assert state.fresh() == 6


@pytest.mark.parametrize("in_hand", [False, True])
def test_a_lease_holds_nothing_that_an_earlier_process_has_delivered(in_hand: bool) -> None:
    noted = Op(OpKind.REQUEUE, 3, value=1, in_hand=in_hand)
    state = restored_state(ChannelImage(0, [], {}, {}, 0), [noted], 10, 100, wall=5, now=0)
    assert state.plain_run(0, 10) == 3


class TestOrphans:
    """What was in hand when its process ended may have ended it."""

    def restored(self, *ops: Op, wall: int) -> ChannelState:
        return restored_state(ChannelImage(0, [], {}, {}, 0), ops, 10, 100, wall=wall, now=0)

    def test_what_was_in_hand_is_one_that_has_not_waited(self) -> None:
        assert dict(self.restored(Op(OpKind.REQUEUE, 3, 2, 1, in_hand=True), wall=5).orphans.items()) == {
            3: False,
            4: False,
        }

    def test_what_came_back_is_none(self) -> None:
        was = Op(OpKind.REQUEUE, 3, value=1, in_hand=True)
        assert dict(self.restored(was, Op(OpKind.REQUEUE, 3, value=1), wall=5).orphans.items()) == {}
        assert dict(self.restored(was, Op(OpKind.ACK, 3), wall=5).orphans.items()) == {}
        assert dict(self.restored(was, Op(OpKind.SEEK, 3), wall=5).orphans.items()) == {}

    def test_what_waits_is_one_by_its_due_time_alone(self) -> None:
        for due, orphans in (50, {}), (51, {3: True}):
            noted = Op(OpKind.REQUEUE, 3, value=1), Op(OpKind.DEFER, 3, 1, due)
            for wall in 49, 60:
                assert dict(self.restored(*noted, wall=wall).orphans.items()) == orphans

    def test_it_is_one_until_it_is_worked_off_through_journals_and_checkpoints(self) -> None:
        state = self.restored(Op(OpKind.REQUEUE, 3, 4, 1, in_hand=True), wall=100)
        state.counting = True
        assert dict(state.orphans.items()) == dict.fromkeys(range(3, 7), False)
        for offset in range(3, 8):
            state.deliver(offset)
        state.orphans[3] = True  # put off
        state.nack(3, 1, due=60)
        state.nack(4, 2)  # it failed, or was released
        state.orphans.pop(4)
        state.nack(5, 2, due=60)
        state.orphans.pop(5)
        state.ack(6)
        state.orphans.pop(6)
        ops = state.take_ops(100, 0)
        for wall in 50, 1000:
            assert dict(self.restored(*ops, wall=wall).orphans.items()) == {3: True, 7: False}
            image, generation = decode_checkpoint(bytes(encode_checkpoint(state.snapshot(100, 0), 5)))
            again = restored_state(image, (), 10, 100, wall=wall)
            assert generation == 5
            assert dict(again.orphans.items()) == {3: True, 7: False}
            assert again.attempts(4) == 2
            assert again.is_ready(4)
            assert again.is_ready(3) == again.is_ready(5) == (wall == 1000)

    def test_what_was_never_delivered_is_none(self) -> None:
        assert dict(self.restored(Op(OpKind.DEFER, 3, 1, 50), wall=60).orphans.items()) == {}


def test_neighbours_are_told_from_what_stands_there_twice() -> None:
    again = Requeued(lambda _: True)
    for offset in (1, 1, 3, 2, 2, 5):
        again.add(offset)
    assert again.take_neighbours(10, lambda offset: offset != 3) == 3
    assert again.first() == 3
    assert again.take_neighbours(10, lambda _: True) == 4
    assert again.take_neighbours(5, lambda _: True) == 5
    assert again.first() == 5


@pytest.mark.parametrize("kind", ["tried", "deferred", "noted", "orphans"])
def test_a_snapshot_copies_nothing_of_single_messages(kind: str) -> None:
    state = channel(0, 50_000, 50_000)
    state.counting = kind == "noted"
    for offset in range(50_000):
        state.deliver(offset)
        if kind == "orphans":
            state.orphans[offset] = False
        elif kind != "noted":
            state.nack(offset, 1, 99 if kind == "deferred" else None)
    tracemalloc.start()
    try:
        snapshot = state.snapshot(1000, 0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 50_000, "bytes"
    state.purge()
    assert len(stored(snapshot).attempts) == (0 if kind == "orphans" else 50_000)


@pytest.mark.parametrize("how", ["seek", "purge"])
def test_what_is_forgotten_is_left_to_be_freed(how: str) -> None:
    state, left = channel(0, 5000, 5000), list[int]()
    for offset in range(5000):
        state.deliver(offset, 10**9)
    for offset in range(2000):
        state.nack(offset, 1, 99 if offset < 1000 else None)
    state.free = lambda part: left.append(len(part))
    if how == "seek":
        state.seek(0)
    else:
        state.purge()
    assert sorted(left, reverse=True)[:3] == [3000, 1000, 1000], "in flight, deferred, and ready again"
    assert (state.flying, len(state.deferred), state.requeued.first()) == (0, 0, None)
    assert state.depth == (5000 if how == "seek" else 0)
    assert not image_of(state).attempts


def test_a_range_that_is_settled_leaves_nothing_behind_of_its_deliveries() -> None:
    state = channel(0, 8, 8)
    state.counting = True
    for offset in range(8):
        state.deliver(offset)
    state.ack(1, 7)
    assert list(in_flight(state)) == [0, 7]
    assert list(stored(state.snapshot(1000, 0)).attempts) == [0, 7]
    assert state.settled_all(1, 7)
    assert list(state._attempts.noted) == [0, 7]
    assert (state.flying, state.depth) == (2, 2)
