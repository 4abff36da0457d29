"""The proof must be able to fail: each thing that can go wrong is done to deliveries that were right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.cli.demo.proof import Ledger, digest, prove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.cli.demo.proof import Verdict

Delivery = tuple[int, bytes]


class Lines:
    """What one producer puts, as plain as can be."""

    def __init__(self, producer: int, size: int) -> None:
        self._lines = [b"%d:%d:text %d" % (producer, number, number) for number in range(size)]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, position: int) -> bytes:
        return self._lines[position]

    def messages(self) -> Iterator[bytes]:
        return iter(self._lines)

    def where(self, position: int) -> str:
        return self._lines[position].decode().rpartition(":")[0]


SCRIPTS = [Lines(0, 6), Lines(1, 4), Lines(2, 1)]


def locate(body: bytes) -> tuple[int, int] | None:
    producer, _, rest = body.partition(b":")
    number = rest.partition(b":")[0]
    if not (
        producer.isdigit() and number.isdigit() and int(producer) < 3 and int(number) < len(SCRIPTS[int(producer)])
    ):
        return None
    return int(producer), int(number)


def deliveries() -> list[Delivery]:
    """Return everything, the producers' lines mixed."""
    order = [(0, 0), (1, 0), (1, 1), (0, 1), (2, 0), (0, 2), (0, 3), (1, 2), (0, 4), (1, 3), (0, 5)]
    return [(offset, SCRIPTS[producer][position]) for offset, (producer, position) in enumerate(order)]


def verdict_of(found: list[Delivery], settled: tuple[int, ...] = ()) -> Verdict:
    return prove(SCRIPTS, locate, found, settled)


def seen(verdict: Verdict) -> list[tuple[str, str, int]]:
    return [(problem.kind, problem.where, problem.offset) for problem in verdict.problems]


def test_everything_as_it_was_put() -> None:
    verdict = verdict_of(deliveries())
    assert verdict.ok
    assert (verdict.expected, verdict.delivered, verdict.redelivered, verdict.problems) == (11, 11, 0, ())
    assert verdict.digests == tuple((digest(script.messages()),) * 2 for script in SCRIPTS)


@pytest.mark.parametrize("place", range(11))
def test_one_lost(place: int) -> None:
    found = deliveries()
    _, body = found.pop(place)
    verdict = verdict_of(found)
    assert not verdict.ok
    assert seen(verdict) == [("lost", body.decode().rpartition(":")[0], -1)]
    assert sum(a != b for a, b in verdict.digests) == 1


@pytest.mark.parametrize("place", range(11))
def test_one_changed(place: int) -> None:
    found = deliveries()
    offset, body = found[place]
    found[place] = offset, body[:-1] + b"!"
    verdict = verdict_of(found)
    assert not verdict.ok
    assert seen(verdict) == [("changed", body.decode().rpartition(":")[0], offset)]
    assert sum(a != b for a, b in verdict.digests) == 1


@pytest.mark.parametrize("body", [b"", b"9:0:text", b"0:99:text", b"no colon", b"0:x:text", b"\xff"])
def test_one_that_nobody_put(body: bytes) -> None:
    verdict = verdict_of([*deliveries(), (11, body)])
    assert not verdict.ok
    assert verdict.counts == {"foreign": 1}
    assert verdict.problems[0].offset == 11


def test_one_changed_into_another_is_told_although_its_name_is_gone() -> None:
    found = deliveries()
    found[0] = 0, b"x" + found[0][1]
    assert seen(verdict_of(found)) == [("foreign", "x0:0:text 0", 0), ("lost", "0:0", -1)]


def test_two_of_a_producer_changed_places() -> None:
    found = deliveries()
    found[5], found[6] = found[6], found[5]
    verdict = verdict_of(found)
    assert not verdict.ok
    assert verdict.counts == {"out of order": 1}
    assert seen(verdict) == [("out of order", "0:2", 5)]


def test_two_of_different_producers_may_change_places() -> None:
    found = deliveries()
    found[2], found[3] = found[3], found[2]
    assert verdict_of(found).ok


def test_one_stored_twice() -> None:
    verdict = verdict_of([*deliveries(), (11, SCRIPTS[0][3])])
    assert not verdict.ok
    assert seen(verdict) == [("stored twice", "0:3", 11)]


def test_one_delivered_again_is_right_as_long_as_its_ack_was_not_durable() -> None:
    found = deliveries()
    again = [*found[:5], *found[3:]]
    verdict = verdict_of(again)
    assert verdict.ok
    assert verdict.redelivered == 2
    verdict = verdict_of(again, settled=(0, 3, 7))
    assert not verdict.ok
    assert seen(verdict) == [("delivered after its ack", "0:1", 3)]


def test_one_delivered_again_with_another_body() -> None:
    found = deliveries()
    verdict = verdict_of([*found, (3, found[3][1] + b"!")])
    assert seen(verdict) == [("changed", "0:1", 3)]


def test_nothing_came_at_all() -> None:
    verdict = verdict_of([])
    assert not verdict.ok
    assert verdict.count("lost") == 11


def test_all_are_counted_and_few_are_named() -> None:
    script = Lines(0, 1000)
    verdict = prove([script], lambda body: (0, int(body.split(b":")[1])), [])
    assert verdict.count("lost") == 1000
    assert len(verdict.problems) == 10
    assert verdict.problems[0].where == "0:0"


def test_what_had_to_be_there_after_the_kill() -> None:
    ledger = Ledger(SCRIPTS, locate)
    for offset, body in deliveries()[:8]:
        ledger.deliver(offset, body)
    assert [ledger.reached(producer) for producer in range(3)] == [4, 3, 1]
    assert ledger.verdict(upto=[3, 3, 0]).ok, "more than what was acknowledged may be there"
    verdict = ledger.verdict(upto=[6, 3, 1])
    assert not verdict.ok
    assert [problem.where for problem in verdict.problems] == ["0:4", "0:5"]


def test_a_hole_before_the_last_that_is_there_is_a_loss_also_beyond_what_was_acknowledged() -> None:
    ledger = Ledger(SCRIPTS, locate)
    for position in (0, 1, 3):
        ledger.deliver(position, SCRIPTS[0][position])
    verdict = ledger.verdict(upto=[1, 0, 0])
    assert [problem.where for problem in verdict.problems] == ["0:2"]
    assert not verdict.ok


@given(st.permutations(deliveries()))
def test_any_order_is_right_just_where_each_producer_s_is(found: list[Delivery]) -> None:
    mine = [[body for _, body in found if body.startswith(b"%d:" % producer)] for producer in range(3)]
    kept = all(lines == list(script.messages()) for lines, script in zip(mine, SCRIPTS, strict=True))
    assert verdict_of(found).ok == kept


@given(st.lists(st.sampled_from(deliveries()), max_size=30))
def test_whatever_comes_the_digests_agree_with_the_rest(found: list[Delivery]) -> None:
    verdict = verdict_of(found)
    same = all(a == b for a, b in verdict.digests)
    assert same == (not verdict.counts and verdict.delivered == verdict.expected)


def test_the_digest_is_one_of_lines_and_not_of_bytes() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest([b"a"]) != digest([b"a", b""])
    assert digest(b"%d" % number for number in range(2500)) == digest([b"%d" % number for number in range(2500)])
