"""What channels hold besides acks: due times, seeks, dead letters."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from aiodq import requeue
from aiodq.delivery.attempts import Attempts
from aiodq.delivery.channel_state import ChannelState
from aiodq.delivery.end_times import EndTimes, _Slot
from aiodq.delivery.handed_ops import handed_ops
from aiodq.delivery.leases import Lease, Leases
from aiodq.delivery.progress import Unjournaled
from aiodq.delivery.state_snapshot import StateSnapshot
from aiodq.engine.channel.acks.out_of_turn import OutOfTurn
from aiodq.engine.channel.acks.undeliverable import Undeliverable
from aiodq.engine.channel.channel_engine import ChannelEngine
from aiodq.engine.channel.source.delivery_filter import DeliveryFilter
from aiodq.engine.committing.entries import Entry, Letters
from aiodq.engine.topic.commit.publisher import Publisher
from aiodq.engine.topic.expirations import Expirations
from aiodq.format.journal import OpKind
from aiodq.format.transactions import Commit
from aiodq.transaction import Transaction
from tests.proof.mutants.registry import Patch, change, mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aiodq
    from aiodq.format.journal import Op


@mutant("delays and requeues")
def a_due_time_is_kept_only_in_memory() -> Patch:
    taken = ChannelState.take_ops

    def forgetful(state: ChannelState, *times: int) -> list[Op]:
        return [op for op in taken(state, *times) if op.kind is not OpKind.DEFER]

    return mock.patch.object(ChannelState, "take_ops", forgetful)


@mutant("delays and requeues")
def a_checkpoint_has_no_due_times() -> Patch:
    return mock.patch.object(StateSnapshot, "deferral_rows", return_value=())


@mutant("delays and requeues")
def what_was_put_with_a_delay_is_not_looked_for_at_open() -> Patch:
    return mock.patch("aiodq.engine.store.opening.delayed", return_value=[])


@mutant("counted deliveries")
def deliveries_are_counted_only_in_memory() -> Patch:
    taken = ChannelState.take_ops

    def forgetful(state: ChannelState, *times: int) -> list[Op]:
        state._look()
        state._progress.unjournaled.deliveries.clear()
        return taken(state, *times)

    return mock.patch.object(ChannelState, "take_ops", forgetful)


@mutant("counted deliveries")
def a_release_does_not_take_its_delivery_back() -> Patch:
    def keep(state: ChannelState, offset: int, attempts: int) -> None:
        state.nack(offset, attempts)

    return mock.patch.object(ChannelState, "release", keep)


@mutant("dead letters")
def a_message_is_settled_without_its_letter() -> Patch:
    return mock.patch.object(Letters, "commit", lambda letters: Commit(Entry.commit(letters).acks, [], None))


@mutant(
    test="tests/channels/test_delivery.py::TestDeadLetters::"
    "test_a_power_cut_leaves_a_message_or_its_letter_and_never_both[asyncio-os]"
)
def a_letter_and_the_settlement_of_its_message_are_not_one_transaction() -> Patch:
    return mock.patch.object(Letters, "commit", lambda letters: Commit([], Entry.commit(letters).puts, None))


@mutant("requeued letters")
@contextmanager
def what_goes_back_to_one_channel_comes_to_all() -> Iterator[None]:
    with (
        mock.patch.object(DeliveryFilter, "is_for_others", return_value=False),
        mock.patch.object(ChannelEngine, "pass_over"),
    ):
        yield


@mutant("requeued letters")
def letters_are_settled_before_they_are_back() -> Patch:
    send_back = requeue._Office.send_back

    async def hasty(office: requeue._Office, letters: list[aiodq.Message]) -> int:
        for letter in letters:
            held = office._taken(letter)
            assert held is not None
            await held.ack()
        with mock.patch.object(Transaction, "ack_many"), mock.patch.object(office, "_taken", lambda letter: letter):
            return await send_back(office, letters)

    return mock.patch.object(requeue._Office, "send_back", hasty)


@mutant("seeking")
def a_seek_is_not_noted() -> Patch:
    taken = ChannelState.take_ops

    def forgetful(state: ChannelState, *times: int) -> list[Op]:
        return [op for op in taken(state, *times) if op.kind is not OpKind.SEEK]

    return mock.patch.object(ChannelState, "take_ops", forgetful)


change(
    "acks are not noted",
    Unjournaled.take_settled,
    "for start, stop in ranges:",
    "for start, stop in ():",
    "checkpoints",
)
change(
    "an ack settles one message more",
    Leases._settled,
    "self._settle(first + at, first + at + total)",
    "self._settle(first + at, first + at + total + 1)",
    "puts and acks",
)
change(
    "an ack of what was delivered before settles one message more",
    ChannelState.ack,
    "self._progress.settle(start, stop)",
    "self._progress.settle(start, stop + 1)",
    test="tests/delivery/test_channel_state.py::TestOps::test_acks_behind_a_hole_are_ranges",
)
change(
    "what comes again waits for what was not handed out",
    ChannelState._make_ready_again,
    "self._make_way(offset, offset + 1)",
    "None",
    test="tests/delivery/test_lease_machine.py::test_what_comes_again_is_looked_for_before_more_is_handed_out",
)
change(
    "what comes due in a gap of a lease waits for what is behind it",
    ChannelState._make_ready_again,
    "self._make_way(offset, offset + 1)",
    "self._leases.halt()",
    test="tests/channels/test_gaps.py::test_what_comes_due_in_a_gap_comes_before_what_is_behind_it[asyncio]",
)
change(
    "what comes again waits for what is behind a gap",
    Lease.halt,
    "self.limit = self.room = self.allowed = self.next",
    "self.limit = self.room = self.next",
    test="tests/delivery/test_lease_machine.py::"
    "test_what_comes_again_is_looked_for_before_the_lease_goes_on_behind_a_gap",
)
change(
    "behind a gap more is in flight than may be",
    Lease.leap,
    "self.allowed += start - self.next",
    "self.allowed += stop",
    test="tests/channels/test_gaps.py::test_behind_a_gap_no_more_is_in_flight_than_may_be[asyncio]",
)
change(
    "what a lease has skipped is never settled",
    Leases._skip,
    "self._settle_all(",
    "list(",
    test="tests/channels/test_gaps.py::test_what_is_skipped_is_settled_on_disk_with_the_next_ack[asyncio]",
)
change(
    "what is in a gap of a lease counts as delivered",
    Lease.uncounted,
    "_IS_GIVEN",
    "bytes([1]) * 256",
    test="tests/channels/test_gaps.py::test_a_lease_goes_on_behind_what_was_acked_in_an_earlier_run[asyncio]",
)
change(
    "what was acked before the channel was opened is handed out again between gaps",
    ChannelState.run_with_gaps,
    "self._progress.settled.within(offset, stop), self",
    "(), self",
    test="tests/channels/test_gaps.py::test_a_lease_goes_on_behind_what_was_acked_in_an_earlier_run[asyncio]",
)
change(
    "what is given up is handed out all the same",
    ChannelState._make_way,
    "self._leases.close()",
    "self._leases.halt()",
    test="tests/delivery/test_lease_machine.py::test_what_is_settled_in_the_middle_of_a_lease_is_not_handed_out",
)
change(
    "a put that is written at once is in the tail without its delay",
    Publisher.show_many,
    "columns.dues is not None or columns.expiries is not None or columns.headers is not None",
    "False",
    test="tests/channels/test_time.py::TestDelayedPuts::"
    "test_nobody_sees_it_early_and_who_waits_gets_it_when_it_is_due[asyncio-os]",
)
change(
    "lifetimes put at once go by the clock of before",
    Publisher.show_many,
    "engine.lifetimes.note(batch.first, engine.log.begin)",
    "None",
    test="tests/channels/test_time.py::TestTimeToLive::test_a_wall_clock_that_is_set_moves_nothing[asyncio--3600-os]",
)
change(
    "all of a lease has the deadline of what was handed out last",
    Lease.turn,
    "self.turns.append((self.next, deadline))",
    "None",
    test="tests/channels/test_time.py::TestTimeout::"
    "test_many_in_flight_time_out_in_the_order_in_which_they_were_handed_out",
)
change(
    "what was delivered by another process counts as new",
    Attempts.first_of,
    "if start >= self.unseen else",
    "if start >= 0 else",
    test="tests/delivery/test_channel_state.py::test_a_lease_holds_nothing_that_an_earlier_process_has_delivered",
)
change(
    "the floor is noted one too high",
    Unjournaled.take_settled,
    "Op(OpKind.FLOOR, floor)",
    "Op(OpKind.FLOOR, floor + 1)",
    "puts and acks",
)
change(
    "what had its last attempt is given up by options that are being replaced",
    Undeliverable._settle_some,
    "or channel.reclaiming or channel.held:",
    "or channel.reclaiming:",
    test="tests/channels/test_dead_in_time.py::test_nothing_is_given_up_while_other_options_are_being_written",
)
IN_TIME = "tests/channels/test_expired_in_time.py::"
change(
    "what ended while the store was closed is settled at its turn only",
    Expirations.look_from,
    "offset < self._engine.visible:",
    "offset < 0:",
    test=IN_TIME + "test_what_ended_while_nobody_had_the_store_open",
)
change(
    "what other writers stored is not looked through for times to live",
    Publisher.adopted,
    "if engine.channel_engines:",
    "if False:",
    test="tests/bulk/test_adoption.py::test_what_has_a_time_to_live_is_settled_when_that_ends",
)
change(
    "what was in hand when its time ended comes back",
    OutOfTurn.back,
    "self.add(offset)",
    "pass",
    test=IN_TIME + "test_what_was_in_hand_then_and_comes_back",
)
change(
    "what is deferred when its time ends waits until it is due",
    ChannelState.expire_ranges,
    "self._give_up(start, edge)",
    "sum(self._give_up(at, at + 1) for at in range(start, edge) if at not in self.deferred)",
    test=IN_TIME + "test_what_is_deferred_then",
)
change(
    "a letter that found no room is tried again at its turn only",
    OutOfTurn.due,
    "if offset in self.unsent:",
    "if False:",
    test=IN_TIME + "test_a_letter_that_finds_no_room_is_tried_again",
)
change(
    "a last attempt of an earlier run is given up at its turn only",
    Undeliverable.look_at_spent,
    "if most is None else",
    "if True else",
    test=IN_TIME + "test_last_attempts_behind_a_live_message_are_letters_at_the_next_opening",
)
change(
    "what ends later than the next hundred thousand is forgotten",
    EndTimes.take_rest,
    "rest, self._rest, self._horizon = self._rest, None, None",
    "rest, self._rest, self._horizon = None, None, None",
    test="tests/delivery/test_end_times.py::test_each_is_told_in_its_time",
)
change(
    "what ends together ends when the first of it does",
    _Slot.add,
    "self.ends = max(self.ends, ends)",
    "self.ends = min(self.ends or ends, ends)",
    test="tests/delivery/test_end_times.py::test_of_what_is_told_together_nothing_is_told_before_its_end",
)
change(
    "what is expired is settled before those who held messages were heard",
    Undeliverable._settle_some,
    "or channel.reclaiming or channel.held:",
    "or channel.held:",
    test=IN_TIME + "test_nothing_is_settled_before_those_who_held_messages_were_heard",
)
change(
    "what is held passes over what was not handed out before it",
    ChannelState.hold,
    "self._passed.add(max(start, self._cursor), stop)",
    "self._cursor = stop",
    test="tests/delivery/test_channel_state.py::test_what_is_held_ahead_of_others_hides_none_of_them",
)

_COUNTED = (
    "tests/channels/test_counted.py::test_a_kill_at_any_moment_finds_what_was_acked_settled_and_counts_what_was_in_hand"
)

change(
    "a delivery is journaled without the acks before it",
    handed_ops,
    "floor += acked",
    "floor += 0",
    test=_COUNTED,
)
change(
    "acks out of order count as those of the oldest messages",
    handed_ops,
    "if not in_order or progress.settled:",
    "if lease.first + first < floor:",
    test=_COUNTED,
)
change(
    "a delivery that was journaled before it was counted hides that of the next message",
    handed_ops,
    "lease.noted, unjournaled.floor = lease.next, floor",
    "lease.noted, unjournaled.floor = len(lease.marks), floor",
    test=_COUNTED,
)
