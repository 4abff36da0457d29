"""Each packet as a dataclass, with its encoder and decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias

from aiodq.errors import ProtocolError
from aiodq.wire.layout import (
    ACK,
    CALL,
    DELIVER,
    EACH,
    EXISTING,
    FACTS,
    FAIL,
    FIGURES,
    HELD,
    HELLO,
    OPEN,
    PLACED,
    PLACES,
    PUT,
    REJECT,
    TEXT,
    TOKEN,
    TXN,
    WANT,
    WELCOME,
    Op,
)
from aiodq.wire.payload import END, Held, Item, Payload, Range, item_rows, json_bytes, range_rows, sized, text_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PACKETS",
    "Ack",
    "Bye",
    "Call",
    "Deliver",
    "Done",
    "Fail",
    "Figures",
    "Gone",
    "Handover",
    "Held",
    "Hello",
    "Item",
    "Nack",
    "Open",
    "Packet",
    "Ping",
    "Pong",
    "Put",
    "Range",
    "Reject",
    "Release",
    "Resume",
    "Touch",
    "Txn",
    "Want",
    "Welcome",
    "read_common",
    "read_packet",
]

_NAME: Final = 255


@dataclass(slots=True)
class _Ranges:
    """Ranges of a channel's messages, and the epoch of the owner that delivered them."""

    handle: int
    epoch: int
    ranges: tuple[Range, ...]

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, range_rows(self.handle, self.epoch, self.ranges)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, count, epoch = data.fixed(ACK)
        return cls(handle, epoch, data.ranges(count))


@dataclass(slots=True)
class _Items:
    """Single messages of a channel, and the epoch of the owner that delivered them."""

    handle: int
    epoch: int
    items: tuple[Item, ...]

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, item_rows(self.handle, self.epoch, self.items)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, count, epoch = data.fixed(ACK)
        return cls(handle, epoch, data.items(count))


@dataclass(slots=True)
class _Token:
    """One number."""

    token: int

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, TOKEN.pack(self.token)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        return cls(*data.fixed(TOKEN))


@dataclass(slots=True)
class Hello:
    """A client's first packet."""

    newest: int
    oldest: int
    pid: int
    producer: int
    epoch: int
    program: str

    op: ClassVar[Op] = Op.HELLO

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        fixed = HELLO.pack(self.newest, self.oldest, self.pid, self.producer, self.epoch, 0)
        return 0, fixed + text_bytes(self.program, _NAME)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        newest, oldest, pid, producer, epoch, zero = data.fixed(HELLO)
        data.zeros(zero)
        if not 0 < oldest <= newest:
            data.refuse(f"no versions are {oldest} to {newest}")
        return cls(newest, oldest, pid, producer, epoch, data.text(data.left, _NAME))


@dataclass(slots=True)
class Welcome:
    """An owner's answer to HELLO; `reclaim` in nanoseconds."""

    version: int
    pid: int
    epoch: int
    largest: int
    reclaim: int

    op: ClassVar[Op] = Op.WELCOME

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, WELCOME.pack(self.version, 0, self.pid, self.epoch, self.largest, 0, self.reclaim)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        version, zero, pid, epoch, largest, nothing, reclaim = data.fixed(WELCOME)
        data.zeros(zero, nothing)
        if not version or not 0 < largest < 1 << 31 or reclaim < 0:
            data.refuse(f"an owner of version {version} takes no packets of {largest} bytes, nor {reclaim} ns")
        return cls(version, pid, epoch, largest, reclaim)


@dataclass(slots=True)
class Open:
    """A handle for a topic, or for a channel of one."""

    handle: int
    topic: str
    channel: str
    options: Mapping[str, Any]
    existing: bool = False

    op: ClassVar[Op] = Op.OPEN

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        topic, channel = text_bytes(self.topic, _NAME, least=1), text_bytes(self.channel, _NAME)
        sizes = OPEN.pack(self.handle, len(topic), len(channel), 0)
        return EXISTING * self.existing, sizes + topic + channel + json_bytes(self.options)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, topic, channel, zero = data.fixed(OPEN)
        data.zeros(zero)
        names = data.text(topic, _NAME, least=1), data.text(channel, _NAME)
        return cls(handle, *names, data.facts(), data.flags == EXISTING)


@dataclass(slots=True)
class Put:
    """Messages for a topic, as frames."""

    handle: int
    sequence: int
    count: int
    frames: bytes
    each: bool = False

    op: ClassVar[Op] = Op.PUT

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return EACH * self.each, PUT.pack(self.handle, self.sequence, self.count) + self.frames

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, sequence, count = data.fixed(PUT)
        if not count or not data.left:
            data.refuse(f"a put of {count} messages in {data.left} bytes")
        return cls(handle, sequence, count, data.rest(), bool(data.flags & EACH))


@dataclass(slots=True)
class Want:
    """How many messages of a channel a client is ready to receive, in all."""

    handle: int
    total: int

    op: ClassVar[Op] = Op.WANT

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, WANT.pack(self.handle, self.total)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        return cls(*data.fixed(WANT))


@dataclass(slots=True)
class Ack(_Ranges):
    """Ranges of messages that are settled."""

    op: ClassVar[Op] = Op.ACK


@dataclass(slots=True)
class Release(_Ranges):
    """Ranges of messages given back, as if they had never been delivered."""

    op: ClassVar[Op] = Op.RELEASE


@dataclass(slots=True)
class Gone(_Ranges):
    """Ranges of messages taken from the client."""

    op: ClassVar[Op] = Op.GONE


@dataclass(slots=True)
class Nack(_Items):
    """Messages to be requeued."""

    op: ClassVar[Op] = Op.NACK


@dataclass(slots=True)
class Touch(_Items):
    """Messages whose timeout is restarted."""

    op: ClassVar[Op] = Op.TOUCH


@dataclass(slots=True)
class Reject:
    """A message to be rejected, with the reason and the exception that caused it, if any."""

    handle: int
    attempts: int
    epoch: int
    offset: int
    delivery: int
    reason: str
    error: str

    op: ClassVar[Op] = Op.REJECT

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        fixed = REJECT.pack(self.handle, self.attempts, self.epoch, self.offset, self.delivery)
        return 0, fixed + sized(text_bytes(self.reason, TEXT)) + sized(text_bytes(self.error, TEXT))

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, attempts, epoch, offset, delivery = data.fixed(REJECT)
        return cls(handle, attempts, epoch, offset, delivery, data.sized_text(), data.sized_text())


@dataclass(slots=True)
class Txn:
    """A transaction."""

    sequence: int
    acks: tuple[Ack, ...]
    puts: tuple[Put, ...]

    op: ClassVar[Op] = Op.TXN

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        parts = [sized(acks.payload()[1]) for acks in self.acks] + [sized(puts.payload()[1]) for puts in self.puts]
        return 0, TXN.pack(self.sequence, len(self.acks), len(self.puts)) + b"".join(parts)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        sequence, acks, puts = data.fixed(TXN)
        settled = tuple(data.part(Ack.read) for _ in range(acks))
        return cls(sequence, settled, tuple(data.part(Put.read) for _ in range(puts)))


@dataclass(slots=True)
class Call:
    """A rare request, by name."""

    name: str
    arguments: Mapping[str, Any]

    op: ClassVar[Op] = Op.CALL

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        name = text_bytes(self.name, _NAME, least=1)
        return 0, CALL.pack(len(name)) + name + json_bytes(self.arguments)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        (size,) = data.fixed(CALL)
        return cls(data.text(size, _NAME, least=1), data.facts())


@dataclass(slots=True)
class Resume:
    """What a client holds of a channel from a previous owner."""

    handle: int
    epoch: int
    held: tuple[Held, ...]

    op: ClassVar[Op] = Op.RESUME

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, ACK.pack(self.handle, len(self.held), self.epoch) + b"".join(HELD.pack(*each) for each in self.held)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, count, epoch = data.fixed(ACK)
        held = tuple(map(Held._make, data.rows(HELD, count, least=0)))
        for each in held:
            data.within(each.first, each.delivery, each.messages)
        return cls(handle, epoch, held)


@dataclass(slots=True)
class Ping(_Token):
    """A question whether the owner's loop runs."""

    op: ClassVar[Op] = Op.PING


@dataclass(slots=True)
class Pong(_Token):
    """The answer to PING."""

    op: ClassVar[Op] = Op.PONG


@dataclass(slots=True)
class Bye:
    """The farewell of a client."""

    op: ClassVar[Op] = Op.BYE

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, b""

    @classmethod
    def read(cls, _data: Payload) -> Self:
        """Decode a payload."""
        return cls()


@dataclass(slots=True)
class Done:
    """The answer to a request that was done: the first offset and the number of messages, or facts, or neither."""

    placed: tuple[int, int] | None = None
    facts: Mapping[str, Any] | None = None

    op: ClassVar[Op] = Op.DONE

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        if self.placed is not None:
            return PLACES, PLACED.pack(*self.placed)
        return (0, b"") if self.facts is None else (FACTS, json_bytes(self.facts))

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        if data.flags == PLACES:
            first, count = data.fixed(PLACED)
            data.within(first, 0, count)
            return cls((first, count))
        if data.flags == PLACES | FACTS:
            data.refuse("places and facts at once")
        return cls(None, data.facts()) if data.flags else cls()


@dataclass(slots=True)
class Fail:
    """The answer to a request that failed: the error's class, attributes and text."""

    name: str
    retriable: bool
    errno: int
    position: int
    pid: int
    path: str
    text: str

    op: ClassVar[Op] = Op.FAIL

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        name, path = text_bytes(self.name, _NAME, least=1), text_bytes(self.path, TEXT - 1)
        text = text_bytes(self.text, TEXT)
        sizes = len(name), self.retriable, len(path), self.errno, self.position, self.pid, len(text)
        return 0, FAIL.pack(*sizes) + name + path + text

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        name, retriable, path, errno, position, pid, text = data.fixed(FAIL)
        if retriable > 1 or position < -1:
            data.refuse(f"an error is not retriable by {retriable}, nor at byte {position}")
        texts = data.text(name, _NAME, least=1), data.text(path, TEXT), data.text(text, TEXT)
        return cls(texts[0], bool(retriable), errno, position, pid, *texts[1:])


@dataclass(slots=True)
class Deliver:
    """Messages of a channel, as frames, which are in flight from now on."""

    handle: int
    attempts: int
    first: int
    delivery: int
    frames: bytes

    op: ClassVar[Op] = Op.DELIVER

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        return 0, DELIVER.pack(self.handle, self.attempts, self.first, self.delivery) + self.frames

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, attempts, first, delivery = data.fixed(DELIVER)
        if not data.left:
            data.refuse("a delivery of nothing")
        return cls(handle, attempts, first, delivery, data.rest())


@dataclass(slots=True)
class Figures:
    """The counts of a channel and its topic."""

    handle: int
    ready: int
    flying: int
    deferred: int
    begin: int
    end: int
    durable: int

    op: ClassVar[Op] = Op.FIGURES

    def payload(self) -> tuple[int, bytes]:
        """Encode: return the flags and the payload."""
        numbers = self.ready, self.flying, self.deferred, self.begin, self.end, self.durable
        return 0, FIGURES.pack(self.handle, 0, *numbers)

    @classmethod
    def read(cls, data: Payload) -> Self:
        """Decode a payload."""
        handle, zero, *numbers = data.fixed(FIGURES)
        data.zeros(zero)
        return cls(handle, *numbers)


@dataclass(slots=True)
class Handover(_Token):
    """The announcement that an owner ends; the token is its epoch."""

    op: ClassVar[Op] = Op.HANDOVER


Packet: TypeAlias = (
    Hello | Open | Put | Want | Ack | Nack | Touch | Release | Reject | Txn | Call | Resume | Ping | Bye
    | Welcome | Done | Fail | Deliver | Gone | Figures | Handover | Pong
)  # fmt: skip
"""Any packet, without the header that frames it on a stream."""

PACKETS: Final[Mapping[int, type[Packet]]] = {
    kind.op: kind
    for kind in (
        Hello, Open, Put, Want, Ack, Nack, Touch, Release, Reject, Txn, Call, Resume, Ping, Bye,
        Welcome, Done, Fail, Deliver, Gone, Figures, Handover, Pong,
    )
}  # fmt: skip
"""The packet classes by operation."""

_FLAGS: Final[Mapping[int, int]] = {Op.OPEN: EXISTING, Op.PUT: EACH, Op.DONE: PLACES | FACTS}
"""The flags that an operation knows; others know none."""


_KNOWN: Final[Mapping[int, tuple[type[Packet], str, int]]] = {
    int(op): (kind, kind.op.name, ~_FLAGS.get(op, 0)) for op, kind in PACKETS.items()
}
"""Each operation's decoder, its name in errors, and the flags it does not know; plain integers are faster keys."""


_PUT: Final = int(Op.PUT)
_DONE: Final = int(Op.DONE)


def read_common(op: int, flags: int, data: bytes, at: int) -> Packet | None:
    """Decode from `at` on a PUT or its answer, in one step, as there is one of each for a put.

    None leaves anything else, and whatever may be wrong, to `read_packet`.
    """
    size = len(data) - at
    if op == _PUT and size > PUT.size and not flags & ~EACH:
        handle, sequence, count = PUT.unpack_from(data, at)
        return Put(handle, sequence, count, data[at + PUT.size :], flags == EACH) if count else None
    if op == _DONE and flags == PLACES and size == PLACED.size:
        first, count = PLACED.unpack_from(data, at)
        return Done((first, count)) if count and first + count <= END else None
    return None


def read_packet(op: int, flags: int, payload: memoryview) -> Packet:
    """Decode a packet.

    Raises:
        ProtocolError: it violates the specification.
    """
    known = _KNOWN.get(op)
    if known is None:
        raise ProtocolError(f"no packet has the operation {op:#x}")
    kind, name, unknown = known
    data = Payload(name, flags, payload)
    if flags & unknown:
        data.refuse(f"unknown flags {flags:#x}")
    packet: Packet = kind.read(data)
    if data.left:
        data.refuse(f"{data.left} bytes too many")
    return packet
