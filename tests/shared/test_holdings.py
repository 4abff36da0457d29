"""What a client has in hand, by runs, against a plain dictionary of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from aiodq.delivery.leases import IN_FLIGHT, SETTLED, Lease
from aiodq.shared.consuming.counts import Counts
from aiodq.shared.consuming.holdings import COMMITTING, SETTLING, HeldMessage, Holdings, Reserved, portions
from aiodq.shared.consuming.placed_puts import PlacedPuts
from aiodq.shared.encoding.number_runs import HERE, NumberRun, NumberRuns, neighbours
from aiodq.wire.packets import Figures
from aiodq.wire.payload import Held, Range

if TYPE_CHECKING:
    from collections.abc import Iterable

COUNTS = st.integers(1, 6)
NUMBERS = st.integers(0, 60)


def numbers_in(start: int, count: int) -> range:
    return range(start, start + count)


def lease(number: int, first: int, count: int) -> Lease:
    """Return a lease of messages under numbers from this one on."""
    made = Lease(first, count, None)
    made.number = number
    return made


def near(start: int, before: int) -> int:
    """Return a number that mostly is that of something: of the first ones, which run into each other."""
    return start % min(before + 1, 12)


@dataclass
class Known:
    """What the model knows of a message."""

    mine: HeldMessage
    lease: Lease
    mark: int = HERE


class InHand(RuleBasedStateMachine):
    """Deliveries, settlements, losses and new owners in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.holdings = Holdings()
        self.model: dict[int, Known] = {}
        self.leases: list[Lease] = []
        self.reserved: list[Reserved] = []
        self.next = 0
        self.offset = 0
        self.delivery = 100

    @rule(count=COUNTS, attempts=st.integers(1, 2), gap=st.integers(0, 2), jump=st.integers(0, 2))
    def deliver(self, count: int, attempts: int, gap: int, jump: int) -> None:
        self.offset += gap
        self.delivery += jump
        made = lease(self.next, self.offset, count)
        self.leases.append(made)
        self.holdings.add(made, self.delivery, attempts)
        for place in range(count):
            self.model[self.next + place] = Known(
                HeldMessage(self.offset + place, self.delivery + place, attempts), made
            )
        self.next, self.offset, self.delivery = self.next + count, self.offset + count, self.delivery + count

    @rule(start=NUMBERS, count=COUNTS, mark=st.sampled_from([SETTLING, COMMITTING]))
    def take(self, start: int, count: int, mark: int) -> None:
        numbers = numbers_in(near(start, self.next), count)
        free = [number for number in numbers if number in self.model and self.model[number].mark == HERE]
        assert self.holdings.free_of(numbers) == [] or self.holdings.any_of([numbers])
        assert [number for each in self.holdings.free_of(numbers) for number in each] == free
        assert self.holdings.all_free(numbers) == (len(free) == count)
        self.holdings.take(numbers, mark)
        for number in free:
            self.model[number].mark = mark

    @rule(start=NUMBERS, off=st.integers(0, 3))
    def take_one(self, start: int, off: int) -> None:
        number = near(start, self.next)
        known = self.model.get(number)
        free = known is not None and known.mark == HERE
        if known is not None and not off:
            assert not self.holdings.take_one(known.mine.offset + 1, number), "it is another message"
        assert self.holdings.take_one(known.mine.offset if known else 0, number) == free
        if known is not None and free:
            # Whoever asks for it has marked it in its lease.
            known.lease.marks[number - known.lease.number] = SETTLED
            known.mark = SETTLING

    @rule(start=NUMBERS, count=COUNTS)
    def reserve(self, start: int, count: int) -> None:
        numbers = numbers_in(near(start, self.next), count)
        free = [number for number in numbers if number in self.model and self.model[number].mark == HERE]
        reserved = self.holdings.reserve(numbers)
        self.reserved += reserved
        assert [number for each in reserved for number in each.numbers] == free
        for each in reserved:
            for place, number in enumerate(each.numbers):
                mine = self.model[number].mine
                assert (mine.offset, mine.delivery) == (each.offset + place, each.delivery + place)
                self.model[number].mark = COMMITTING

    @rule(start=NUMBERS, count=COUNTS)
    def leave(self, start: int, count: int) -> None:
        numbers = numbers_in(near(start, self.next), count)
        self.holdings.leave(numbers)
        for number in numbers:
            if number in self.model and self.model[number].mark == COMMITTING:
                self.model[number].mark = HERE

    @rule(start=NUMBERS, count=COUNTS)
    def drop(self, start: int, count: int) -> None:
        numbers = numbers_in(near(start, self.next), count)
        self.holdings.drop(numbers)
        for number in numbers:
            self.model.pop(number, None)

    @rule(start=st.integers(99, 115), count=COUNTS)
    def lose(self, start: int, count: int) -> None:
        deliveries = numbers_in(start, count)
        hit = [number for number, known in self.model.items() if known.mine.delivery in deliveries]
        staying = {number for number in hit if self.model[number].mark == SETTLING}
        assert {number for each in self.holdings.lose(deliveries) for number in each} == staying
        for number in hit:
            if number not in staying:
                del self.model[number]

    @rule(kept=st.sets(st.integers(0, 20)), jump=st.integers(1, 3))
    def another_owner(self, kept: set[int], jump: int) -> None:
        given = {offset: 2 * offset + jump if offset % 3 else offset + jump for offset in kept}
        self.holdings.renumber(given, self.next)
        for number, known in list(self.model.items()):
            if known.mine.offset in given:
                known.mine = known.mine._replace(delivery=given[known.mine.offset])
            else:
                del self.model[number]

    @invariant()
    def it_is_as_the_dictionary_says(self) -> None:
        assert len(self.holdings) == len(self.model)
        assert self.holdings.free == sum(known.mark == HERE for known in self.model.values())
        for number in range(self.next + 2):
            known = self.model.get(number)
            assert self.holdings.get(number) == (known and known.mine)
            free = known is not None and known.mark == HERE
            assert self.holdings.is_free(known.mine.offset if known else 0, number) == free
            assert not self.holdings.is_free(-1, number)
            assert self.holdings.any_of([range(number, number + 1)]) == (known is not None)
        for each in self.leases:
            for number, mark in enumerate(each.marks, each.number):
                known = self.model.get(number)
                assert mark not in IN_FLIGHT or (known and known.mark == HERE), "only what is free is acked by its mark"
        everything = [range(self.next)]
        rows = [known.mine for _, known in sorted(self.model.items())]
        assert self.holdings.rows(everything) == rows
        ranges = self.holdings.ranges(everything)
        assert singly(ranges) == [(one.offset, one.delivery) for one in rows]
        ends = [(one.first + one.messages, one.delivery + one.messages) for one in ranges]
        assert not any(end == more[:2] for end, more in zip(ends, ranges[1:], strict=False))
        for those in self.reserved:
            gone = [place for place, number in enumerate(those.numbers) if number not in self.model]
            was = [(those.offset + place, those.delivery + place) for place in gone]
            assert singly(self.holdings.missing(those)) == was
        assert [
            HeldMessage(one.first + place, one.delivery + place, one.attempts)
            for one in self.holdings.held()
            for place in range(one.messages)
        ] == rows


def singly(ranges: Iterable[Range]) -> list[tuple[int, int]]:
    return [(one.first + place, one.delivery + place) for one in ranges for place in range(one.messages)]


def test_in_any_order() -> None:
    run_state_machine_as_test(InHand, settings=settings(max_examples=80, stateful_step_count=25))


def test_what_another_owner_delivered_is_not_lost_by_this_ones_numbers() -> None:
    holdings = Holdings()
    holdings.add(lease(0, 10, 3), 100, 1)
    holdings.add(lease(3, 20, 3), 100, 1)
    assert holdings.lose(range(100, 103), 3) == []
    assert holdings.held() == (Held(10, 100, 3, 1),)


def test_what_of_a_run_is_missing_is_said_as_it_was_reserved() -> None:
    holdings = Holdings()
    holdings.add(lease(0, 10, 6), 100, 1)
    [reserved] = holdings.reserve(range(1, 6))
    holdings.drop(range(1, 2))
    holdings.drop(range(3, 5))
    assert holdings.missing(reserved) == [Range(11, 101, 1), Range(13, 103, 2)]


def test_what_is_left_of_a_run_is_claimed_by_its_own_offsets_whoever_has_delivered_it() -> None:
    holdings = Holdings()
    holdings.add(lease(0, 10, 4), 100, 1, 7)
    holdings.drop(range(2))
    assert holdings.as_delivered() == {7: (Held(12, 102, 2, 1),)}
    holdings.add(lease(4, 12, 2), 300, 2, 8)
    assert holdings.among({13}, 4) == {3: 13}
    assert holdings.among({12, 13, 14}, 5) == {2: 12, 3: 13, 4: 12, 5: 13}
    holdings.drop(range(4, 6))
    holdings.renumber({12: 201, 13: 202}, 4)
    assert holdings.held() == (Held(12, 201, 2, 1),)
    assert holdings.as_delivered() == {7: (Held(12, 102, 2, 1),)}


def test_neighbours_in_offset_and_delivery_are_one_range() -> None:
    holdings = Holdings()
    holdings.add(lease(0, 10, 3), 100, 1)
    holdings.add(lease(3, 13, 3), 103, 2)
    holdings.add(lease(6, 16, 3), 200, 1)
    assert holdings.ranges([range(9)]) == (Range(10, 100, 6), Range(16, 200, 3))
    assert neighbours([4, 5, 6, 1, 2, 9]) == [range(4, 7), range(1, 3), range(9, 10)]


def test_a_run_ends_with_its_last_message_and_one_may_come_back_before() -> None:
    runs: NumberRuns[NumberRun] = NumberRuns()
    later, run = NumberRun(10, 2), NumberRun(5, 3)
    runs.add(later)
    runs.add(run)
    assert [each.number for each in runs] == [5, 10]
    runs.drop(run, 0, 2)
    assert runs.find(6) is None
    assert runs.restore(range(6, 7)) == (run, 1)
    assert runs.find(6) == (run, 1)
    runs.drop(run, 0, 3)
    assert runs.restore(range(6, 7)) is None
    assert (len(runs), [each.number for each in runs]) == (2, [10])
    assert runs.parts(range(11, 1 << 64)) == [(later, 1, 2)]
    assert runs.parts(range(12, 1 << 64)) == []
    assert (runs.find(9), runs.find(12)) == (None, None)


def test_what_somebody_is_about_to_settle_is_taken_by_nobody_else() -> None:
    holdings = Holdings()
    holdings.add(lease(0, 10, 3), 100, 1)
    holdings.take(range(1, 2), SETTLING)
    holdings.take(range(3), COMMITTING)
    holdings.leave(range(3))
    assert holdings.free_of(range(3)) == [range(1), range(2, 3)]
    assert holdings.free == 2


def test_what_is_held_is_said_in_portions() -> None:
    held = (Held(10, 100, 3, 1), Held(20, 110, 1, 2), Held(30, 120, 5, 1))
    assert portions(held, 4) == [held[:2], (Held(30, 120, 4, 1),), (Held(34, 124, 1, 1),)]
    assert portions(held, 2)[0] == (Held(10, 100, 2, 1),)
    assert portions((), 4) == []


def test_counts_are_what_the_owner_said_and_what_was_done_here_since() -> None:
    counted = list[Counts]()
    placed = PlacedPuts(lambda: counted)
    counts = Counts(placed)
    counted.append(counts)

    def known() -> tuple[int, int, int]:
        return counts.ready, counts.flying, counts.deferred

    counts.receive(Figures(1, 5, 2, 1, 0, 8, 8))
    assert known() == (5, 2, 1)
    counts.delivered(3)
    assert known() == (2, 5, 1)
    counts.settled(1, back=False)
    counts.settled(1, back=True)
    assert known() == (3, 3, 1)
    placed.add(range(8, 10))
    placed.add(range(4, 6))  # the owner has counted these
    assert known() == (5, 3, 1)
    counts.receive(Figures(1, 4, 3, 0, 0, 9, 9))
    assert known() == (5, 3, 0), "of the two that were put, one was not counted there"
    counts.delivered(9)
    counts.settled(20, back=False)
    assert known() == (0, 0, 0), "what is known at different times makes no count negative"
    counts.reset()
    assert known() == (5, 3, 0)
    counts.receive(Figures(1, 7, 0, 0, 0, 20, 20))
    assert known() == (7, 0, 0)


def test_what_was_put_counts_in_each_channel_whose_counts_do_not_reach_so_far() -> None:
    counted = list[Counts]()
    placed = PlacedPuts(lambda: counted)
    placed.add(range(5))
    counted += [Counts(placed) for _ in range(3)]
    assert [each.ready for each in counted] == [0, 0, 0], "what was put before a channel is in its first counts"
    for first in range(10, 3010, 3):  # another process puts what is missing
        placed.add(range(first, first + 2))
        counted[0].receive(Figures(1, 1, 0, 0, 0, first, first))
        counted[1].receive(Figures(2, 1, 0, 0, 0, first + 1, first + 1))
    assert [each.ready for each in counted] == [3, 2, 2000]
    counted[2].receive(Figures(3, 0, 0, 0, 0, first, first))
    for number in range(3000):
        placed.add(range(4000 + 2 * number, 4001 + 2 * number))
        for each in counted:
            each.receive(Figures(1, 0, 0, 0, 0, 4000 + 2 * number, 0))
    assert [each.ready for each in counted] == [1, 1, 1]
    assert len(placed._earlier) < 3000, "what all channels have counted is forgotten"


def test_the_deepest_channel_is_looked_for_only_where_one_may_be_too_deep() -> None:
    looks = 0
    counted = list[Counts]()

    def look() -> list[Counts]:
        nonlocal looks
        looks += 1
        return counted

    placed = PlacedPuts(look)
    counted += [Counts(placed) for _ in range(3)]
    counted[1].assume(30, 10, 5)
    for number in range(50):
        assert not placed.reaches(100)
        placed.add(range(number, number + 1))
    assert (looks, placed.reaches(96), looks) == (0, False, 0)
    assert placed.reaches(95)
    assert looks == 1
    counted[1].receive(Figures(1, 20, 10, 5, 0, 50, 50))
    assert placed.reaches(50)
    assert not placed.reaches(51)
    counted[2].delivered(90)  # of others' puts, which no counts include yet
    assert placed.reaches(90)
