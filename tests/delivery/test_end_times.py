"""When times to live end, against a plain list of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiodq.delivery.end_times import EndTimes

SECOND = 1_000_000_000
LIVES = st.one_of(
    st.integers(-SECOND, 3 * SECOND), st.integers(0, 100_000 * SECOND), st.sampled_from([0, 10 * SECOND, 600 * SECOND])
)
PUTS = st.lists(st.tuples(st.integers(1, 3), LIVES, st.integers(0, 20 * SECOND)), max_size=60)


@given(
    puts=PUTS,
    most=st.sampled_from([1, 2, 8, 1_000]),
    waits=st.lists(st.integers(1, 20_000 * SECOND), max_size=12),
    at_once=st.sampled_from([1, 3, 1_000]),
)
def test_each_is_told_in_its_time(puts: list[tuple[int, int, int]], most: int, waits: list[int], at_once: int) -> None:
    """Never before; after by a thousandth of its life at most; also what was kept as one range, which is read again."""
    times, now, stop = EndTimes(most), 0, 0
    ends: dict[int, tuple[int, int]] = {}
    told: set[int] = set()

    def tell() -> None:
        while True:
            while found := times.take(now, at_once):
                for first, last in found:
                    assert all(ends[offset][0] <= now for offset in range(first, last))
                    told.update(range(first, last))
            if (rest := times.take_rest()) is None:
                break
            for offset in range(*rest):
                times.add(offset, offset + 1, ends[offset][0], now)
        for offset, (end, slack) in ends.items():
            assert offset in told or now < end + slack
        assert (moment := times.next()) is None or moment > now

    for number, life, wait in puts:
        times.add(stop, stop + number, now + life, now)
        ends |= dict.fromkeys(range(stop, stop + number), (now + life, max(life // 1_000, 0) + SECOND // 500))
        stop += number
        tell()
        now += wait
        tell()
    for wait in waits:
        now += wait
        tell()
    now += 100_001 * SECOND
    tell()
    assert told == ends.keys()
    assert (times.next(), times.take_rest(), times.ranges) == (None, None, 0)


def test_alone_or_at_one_moment_it_is_exact() -> None:
    times = EndTimes()
    times.add(0, 10, 10 * SECOND, 0)
    times.add(10, 20, 10 * SECOND, 1)
    times.add(30, 31, 20 * SECOND, 1)
    assert times.next() == 10 * SECOND
    assert times.take(10 * SECOND - 1) == []
    assert times.take(10 * SECOND) == [(0, 20)]
    assert times.next() == 20 * SECOND


def test_of_what_is_told_together_nothing_is_told_before_its_end() -> None:
    for first, last in ((0, 1), (1, 0)):
        times, ends = EndTimes(), (10 * SECOND, 10 * SECOND + SECOND // 1_000)
        times.add(0, 1, ends[first], 0)
        times.add(1, 2, ends[last], 0)
        assert times.ranges == 1, "they have one moment"
        assert not times.take(ends[0], 1_000)
        assert times.take(ends[1], 1_000) == [(0, 2)]


def test_of_what_ends_at_once_a_part_is_taken_at_a_time() -> None:
    times = EndTimes()
    for number in range(0, 10, 2):
        times.add(number, number + 1, 10 * SECOND, 0)
    found = []
    while times.next() == 10 * SECOND:
        found.append(times.take(10 * SECOND, 2))
    assert found == [[(0, 1), (2, 3)], [(4, 5), (6, 7)], [(8, 9)]]
    assert (times.next(), times.ranges) == (None, 0)


def test_a_million_of_one_lifetime_take_little_and_so_do_any() -> None:
    times = EndTimes()
    for number in range(200_000):
        now = number * SECOND // 100_000
        times.add(number, number + 1, now + 60 * SECOND, now)
    assert times.ranges < 100
    times = EndTimes(1_000)
    for number in range(20_000):
        times.add(number, number + 1, (number * 7_919) % 20_000 * SECOND, 0)
        assert times.ranges <= 1_000
