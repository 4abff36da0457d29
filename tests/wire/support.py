"""What these tests share: packets of every kind, by hand and by Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from aiodq.wire.packets import (
    Ack,
    Bye,
    Call,
    Deliver,
    Done,
    Fail,
    Figures,
    Gone,
    Handover,
    Held,
    Hello,
    Item,
    Nack,
    Open,
    Packet,
    Ping,
    Pong,
    Put,
    Range,
    Reject,
    Release,
    Resume,
    Touch,
    Txn,
    Want,
    Welcome,
)

RANGES = (Range(5, 100, 3), Range(9, 107, 1))
ITEMS = (Item(5, 100, -1, 1), Item(9, 107, 1_500_000_000, 2))

EXAMPLES: dict[str, Packet] = {
    "hello": Hello(1, 1, 4711, 0x0123456789ABCDEF, 7, "uvicorn: a worker \u00e9"),
    "hello-shortest": Hello(1, 1, 1, 0, 0, ""),
    "hello-2": Hello(2, 1, 4711, 0x0123456789ABCDEF, 7, "uvicorn"),
    "welcome-2": Welcome(2, 4710, 8, 1 << 25, 1_000_000_000),
    "welcome": Welcome(1, 4710, 8, 1 << 25, 1_000_000_000),
    "open-topic": Open(1, "jobs", "", {}),
    "open-channel": Open(2, "jobs", "default", {"channel": {"max_in_flight": 10}}),
    "open-topic-existing": Open(1, "jobs", "", {"uuid": "7b0d6c5e-8f0a-4a53-9c0e-3f2f0d1f6f10"}, existing=True),
    "open-channel-existing": Open(2, "jobs", "default", {}, existing=True),
    "open-channel-made": Open(2, "jobs", "default", {"made": "0f1e2d3c4b5a"}, existing=True),
    "put": Put(1, 42, 2, b"frames of 8 bytes units..", each=False),
    "put-each": Put(1, 43, 1, b"\x00" * 8, each=True),
    "want": Want(2, 1000),
    "ack": Ack(2, 8, RANGES),
    "nack": Nack(2, 8, ITEMS),
    "touch": Touch(2, 8, ITEMS[:1]),
    "release": Release(2, 8, RANGES[1:]),
    "reject": Reject(2, 3, 8, 5, 100, "no such customer", "KeyError: 'x'"),
    "txn": Txn(9, (Ack(2, 8, RANGES),), (Put(1, 44, 1, b"12345678"), Put(3, 1, 1, b"abcdefgh"))),
    "call": Call("seek", {"channel": "default", "position": "earliest"}),
    "call-plain": Call("purge", {}),
    "resume": Resume(2, 7, (Held(5, 100, 3, 1), Held(9, 107, 1, 4))),
    "resume-nothing": Resume(2, 7, ()),
    "ping": Ping(99),
    "bye": Bye(),
    "done": Done(),
    "done-placed": Done((1000, 2)),
    "done-facts": Done(None, {"count": 3}),
    "fail": Fail("DiskFullError", retriable=True, errno=28, position=-1, pid=0, path="/s/jobs", text="no space"),
    "deliver": Deliver(2, 1, 5, 100, b"a frame " * 4),
    "gone": Gone(2, 8, RANGES),
    "figures": Figures(2, 5, 1, 2, 100, 108, 107),
    "handover": Handover(8),
    "pong": Pong(99),
}
"""By the names of their golden files."""

NEW_IN_2 = ("hello-2", "welcome-2", "open-topic-existing", "open-channel-existing", "open-channel-made")
"""Those that version 1 does not have."""

u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
names = st.text(max_size=40)
known = st.text(min_size=1, max_size=40)
bodies = st.binary(min_size=1, max_size=60)
values = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
facts = st.dictionaries(st.text(max_size=8), values | st.lists(values, max_size=3), max_size=4)
spans = st.integers(-1, (1 << 63) - 1)


@st.composite
def ranges_of(draw: st.DrawFn, kind: Any = Range) -> Any:
    """Return a range that there can be."""
    count = draw(st.integers(1, (1 << 32) - 1))
    below = st.integers(0, (1 << 64) - count)
    row = [draw(below), draw(below), count]
    return kind(*row) if kind is Range else kind(*row, draw(u32))


def several(one: st.SearchStrategy[Any], least: int = 1) -> st.SearchStrategy[Any]:
    """Return tuples of it."""
    return st.lists(one, min_size=least, max_size=4).map(tuple)


items = several(st.builds(Item, u64, u64, spans, u32))
acks = st.builds(Ack, u32, u64, several(ranges_of()))
puts = st.builds(Put, u32, u64, st.integers(1, (1 << 32) - 1), bodies)
versions = st.tuples(st.integers(1, 65535), st.integers(1, 65535)).map(sorted)

messages: st.SearchStrategy[Packet] = st.one_of(
    st.builds(lambda both, *rest: Hello(both[1], both[0], *rest), versions, u32, u64, u64, names),
    st.builds(Welcome, st.integers(1, 65535), u32, u64, st.integers(1, 0x7FFFFFFF), st.integers(0, (1 << 63) - 1)),
    st.builds(Open, u32, known, names, facts, st.booleans()),
    st.builds(Put, u32, u64, st.integers(1, (1 << 32) - 1), bodies, st.booleans()),
    st.builds(Want, u32, u64),
    acks,
    st.builds(Nack, u32, u64, items),
    st.builds(Touch, u32, u64, items),
    st.builds(Release, u32, u64, several(ranges_of())),
    st.builds(Reject, u32, u32, u64, u64, u64, names, names),
    st.builds(Txn, u64, st.lists(acks, max_size=2).map(tuple), st.lists(puts, max_size=2).map(tuple)),
    st.builds(Call, known, facts),
    st.builds(Resume, u32, u64, several(ranges_of(Held), 0)),
    st.builds(Ping, u64),
    st.just(Bye()),
    st.just(Done()),
    ranges_of().map(lambda one: Done((one.first, one.messages))),
    facts.filter(bool).map(lambda some: Done(None, some)),
    st.builds(
        Fail, known, st.booleans(), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-1, (1 << 63) - 1), u32, names,
        names,
    ),
    st.builds(Deliver, u32, u32, u64, u64, bodies),
    st.builds(Gone, u32, u64, several(ranges_of())),
    st.builds(Figures, u32, u64, u64, u64, u64, u64, u64),
    st.builds(Handover, u64),
    st.builds(Pong, u64),
)  # fmt: skip
