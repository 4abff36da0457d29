from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.cli.demo.sources import Library, standard_library
from aiodq.cli.demo.wire import Acknowledged, Delivered, Settled, Unpacker, pack

if TYPE_CHECKING:
    from pathlib import Path

    from aiodq.cli.demo.wire import Event

SOURCES = {
    "a.py": b"one\ntwo\r\n\nlast",
    "b.py": b"",
    "c:7.py": b"\xff\xfe\n",
    "p/d.py": b"x\n" * 5,
    "p/not-python.txt": b"no\n",
    "site-packages/e.py": b"no\n",
}
LINES = [
    b"a.py:1:one",
    b"a.py:2:two\r",
    b"a.py:3:",
    b"a.py:4:last",
    b"c%3A7.py:1:\xff\xfe",
    *(b"p/d.py:%d:x" % number for number in range(1, 6)),
]


@pytest.fixture
def root(tmp_path: Path) -> str:
    for name, data in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return str(tmp_path)


@pytest.mark.parametrize("producers", [1, 2, 3, 20])
def test_every_line_has_one_place(root: str, producers: int) -> None:
    library = Library(root, producers)
    found = [(number, place) for number, share in enumerate(library.shares) for place in range(len(share))]
    bodies = [library.shares[number][place] for number, place in found]
    assert sorted(bodies) == LINES
    assert [library.locate(body) for body in bodies] == found
    assert [list(share.messages()) for share in library.shares] == [
        [share[place] for place in range(len(share))] for share in library.shares
    ]
    assert (library.lines, library.files) == (len(LINES), 4)


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_limit_takes_the_first_lines(root: str, limit: int) -> None:
    library = Library(root, 2, limit)
    bodies = [body for share in library.shares for body in share.messages()]
    assert sorted(bodies) == LINES[:limit]
    assert library.lines == len(bodies)


@pytest.mark.parametrize("start", range(11))
def test_going_on_in_the_middle(root: str, start: int) -> None:
    (share,) = Library(root, 1).shares
    assert list(share.messages(start)) == LINES[start:]


def test_a_place_has_a_name(root: str) -> None:
    (share,) = Library(root, 1).shares
    assert [share.where(place) for place in (0, 3, 4, 9)] == ["a.py:1", "a.py:4", "c%3A7.py:1", "p/d.py:5"]


@pytest.mark.parametrize("body", [b"", b"a.py", b"a.py:", b"a.py:0:", b"a.py:5:", b"a.py:-1:", b"z.py:1:", b"b.py:1:"])
def test_what_is_no_line_has_no_place(root: str, body: bytes) -> None:
    assert Library(root, 2).locate(body) is None


def test_everybody_deals_alike(root: str) -> None:
    first, second = (Library(root, 3) for _ in range(2))
    assert [list(share.messages()) for share in first.shares] == [list(share.messages()) for share in second.shares]


def test_the_standard_library_is_large_and_not_all_utf_8() -> None:
    library = Library(standard_library(), 8)
    assert library.lines > 200_000
    sizes = [len(share) for share in library.shares]
    assert max(sizes) - min(sizes) < library.lines // 8
    assert library.locate(b"asyncio/queues.py:1:") is not None


EVENTS: list[Event] = [
    Acknowledged(3, 70_000, 12),
    Delivered([(0, b""), (2**40, b"\0\xff\n"), (7, b"x" * 3000)]),
    Delivered([]),
    Settled([5, 2**63]),
    Settled([]),
    Acknowledged(0, 0, 0),
]


def test_events_come_through_whatever_the_pipe_makes_of_them(seed: int) -> None:
    draw = random.Random(seed)
    data = b"".join(map(pack, EVENTS))
    found: list[Event] = []
    unpacker, at = Unpacker(), 0
    while at < len(data):
        size = draw.randint(1, 400)
        found += unpacker.feed(data[at : at + size])
        at += size
    assert found == EVENTS


@given(st.data())
def test_what_was_cut_at_the_end_is_no_event(data: st.DataObject) -> None:
    whole = b"".join(map(pack, EVENTS))
    size = data.draw(st.integers(0, len(whole)))
    ends = [sum(len(pack(event)) for event in EVENTS[:count]) for count in range(len(EVENTS) + 1)]
    expected = max(count for count, end in enumerate(ends) if end <= size)
    assert list(Unpacker().feed(whole[:size])) == EVENTS[:expected]
