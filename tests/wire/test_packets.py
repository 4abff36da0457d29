"""Packets come out of a stream as they went in, however it is cut; what is none is a typed error, at any byte."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import ProtocolError
from aiodq.wire.layout import ACK, FIRST_PACKET, HELLO, ITEM, OPEN, PACKET, PLACED, RANGE, TXN, Op
from aiodq.wire.packets import PACKETS, Call, Done, Open, Packet, Ping
from aiodq.wire.stream import PacketReader, Received, encode_packet, encode_placed
from tests.format.support import memory_bound, patched
from tests.wire.support import EXAMPLES, NEW_IN_2, messages

_GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "wire"
AT = PACKET.size


def golden(name: str) -> Path:
    """Return the file of an example, among those of the version that has it first."""
    return _GOLDEN / ("v2" if name in NEW_IN_2 else "v1") / f"{name}.bin"


def read(data: bytes, *, largest: int = 1 << 20) -> list[Received]:
    reader = PacketReader()
    reader.largest = largest
    found = list(reader.feed(data))
    assert not reader.waiting
    return found


def packet(op: int, payload: bytes, flags: int = 0) -> bytes:
    return PACKET.pack(AT + len(payload), op, flags, 0, 1) + payload


def refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        read(data)


@given(st.lists(st.tuples(messages, st.integers(0, (1 << 32) - 1)), max_size=5), st.randoms(use_true_random=False))
def test_what_is_sent_arrives_however_it_is_cut(said: list[tuple[Packet, int]], rng: random.Random) -> None:
    data = b"".join(encode_packet(*each) for each in said)
    reader, found, at = PacketReader(), [], 0
    reader.largest = 1 << 20
    while at < len(data):
        step = rng.choice([1, 3, 12, 50, 1000])
        found += list(reader.feed(data[at : at + step]))
        at += step
    assert found == [Received(*each) for each in said]
    assert reader.waiting == 0


def _said_of(*pieces: bytes) -> list[Received] | str:
    reader = PacketReader()
    try:
        return [each for piece in pieces for each in reader.feed(piece)]
    except ProtocolError as error:
        return str(error)


@given(
    st.sampled_from([Op.PUT, Op.DONE]),
    st.integers(0, 255) | st.integers(0, 3),
    st.binary(max_size=40) | st.builds(PLACED.pack, st.integers((1 << 64) - 2, (1 << 64) - 1), st.integers(0, 2)),
)
def test_a_put_and_its_answer_are_read_alike_whole_and_in_pieces(op: Op, flags: int, payload: bytes) -> None:
    data = packet(op, payload, flags)
    assert _said_of(data) == _said_of(data[:1], data[1:])


@given(st.integers(0, (1 << 64) - 2), st.integers(1, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_the_answer_to_a_put_has_the_bytes_of_any_answer(first: int, count: int, request: int) -> None:
    assert encode_placed(first, count, request) == encode_packet(Done((first, count)), request)


@pytest.mark.parametrize("name", EXAMPLES)
def test_bytes_of_each_version_stay(name: str) -> None:
    data = golden(name).read_bytes()
    assert encode_packet(EXAMPLES[name], 7) == data
    assert read(data) == [Received(EXAMPLES[name], 7)]


def test_there_is_an_example_of_every_operation_and_nothing_else_in_the_golden_files() -> None:
    assert {type(message) for message in EXAMPLES.values()} == set(PACKETS.values())
    assert set(PACKETS) == set(Op)
    assert set(_GOLDEN.rglob("*.*")) == {golden(name) for name in EXAMPLES}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_packet_that_is_cut_short_is_waited_for_or_refused(name: str) -> None:
    data = encode_packet(EXAMPLES[name], 7)
    for size in range(len(data)):
        reader = PacketReader()
        assert list(reader.feed(data[:size])) == []
        assert reader.waiting == size
        assert reader.coming == (0 if size < PACKET.size else len(data))
        assert list(reader.feed(data[size:])) == [Received(EXAMPLES[name], 7)]
        if size >= AT:  # and with a length that says so
            whole = size.to_bytes(4, "little") + data[4:size]
            reader = PacketReader()
            try:
                [found] = reader.feed(whole)
            except ProtocolError:
                continue
            assert encode_packet(*found) == whole, "what is shorter and right says something else"


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_packet_with_bytes_too_many_is_refused_or_says_them(name: str) -> None:
    data = encode_packet(EXAMPLES[name], 7)
    for more in (b"\0", b"}", b"\0" * 8):
        longer = (len(data) + len(more)).to_bytes(4, "little") + data[4:] + more
        try:
            [found] = read(longer)
        except ProtocolError:
            continue
        assert found != Received(EXAMPLES[name], 7)
        assert encode_packet(*found) == longer


@given(st.binary(max_size=200))
def test_any_bytes_are_packets_or_refused(data: bytes) -> None:
    reader = PacketReader()
    with memory_bound(1 << 20):
        try:
            found = list(reader.feed(data))
        except ProtocolError:
            with pytest.raises(ProtocolError):
                list(reader.feed(encode_packet(Ping(1))))
            return
    for each in found:
        [again] = PacketReader().feed(encode_packet(*each))
        assert again == each


@pytest.mark.parametrize("name", EXAMPLES)
def test_any_changed_byte_is_another_packet_or_refused(name: str, seed: int) -> None:
    rng = random.Random(seed)
    data = encode_packet(EXAMPLES[name], 7)
    for at in range(4, len(data)):
        for value in {data[at] ^ 1, data[at] ^ 0x80, rng.randrange(256), 0xFF} - {data[at]}:
            try:
                [found] = read(patched(data, at, bytes([value])))
            except ProtocolError:
                continue
            assert found != Received(EXAMPLES[name], 7)
            assert read(encode_packet(*found)) == [found]


def test_a_length_is_believed_up_to_the_bound_and_costs_nothing_before() -> None:
    for length in (0, AT - 1, FIRST_PACKET + 1, 0xFFFFFFFF):
        with memory_bound(100_000), pytest.raises(ProtocolError, match=f"a packet of {length} bytes"):
            list(PacketReader().feed(length.to_bytes(4, "little") + bytes(8)))
    reader = PacketReader()
    with memory_bound(100_000):
        assert list(reader.feed(FIRST_PACKET.to_bytes(4, "little") + b"\x03" + bytes(7))) == []


def test_behind_what_is_no_packet_nothing_is_read() -> None:
    good, reader = encode_packet(Ping(1), 3), PacketReader()
    packets = reader.feed(good + bytes(12) + good)
    assert next(packets) == Received(Ping(1), 3)
    with pytest.raises(ProtocolError):
        next(packets)
    with pytest.raises(ProtocolError):
        list(reader.feed(good))


def test_a_foreign_program_is_refused_at_once() -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" * 3, b"SSH-2.0-OpenSSH\r\n", b"  V2" * 3):
        with pytest.raises(ProtocolError):
            list(PacketReader().feed(data))


def test_what_the_numbers_cannot_mean_is_refused() -> None:
    refused(packet(0x7F, b""), "no packet has the operation 0x7f")
    refused(packet(Op.BYE, b"", flags=1), "BYE: unknown flags 0x1")
    refused(PACKET.pack(AT, Op.BYE, 0, 1, 0), "reserved")
    refused(packet(Op.HELLO, HELLO.pack(1, 2, 0, 0, 0, 0)), "no versions are 2 to 1")
    refused(packet(Op.HELLO, HELLO.pack(1, 0, 0, 0, 0, 0)), "no versions are 0 to 1")
    refused(packet(Op.HELLO, HELLO.pack(1, 1, 0, 0, 0, 9)), "HELLO: reserved")
    refused(packet(Op.HELLO, HELLO.pack(1, 1, 0, 0, 0, 0) + b"\xff"), "not UTF-8")
    refused(packet(Op.ACK, ACK.pack(1, 0, 1)), "0 rows")
    refused(packet(Op.ACK, ACK.pack(1, 2, 1) + RANGE.pack(1, 1, 1)), "2 rows of 20 bytes in 20 bytes")
    refused(packet(Op.ACK, ACK.pack(1, 1, 1) + RANGE.pack(1, 1, 0)), "no range has 0 messages")
    refused(packet(Op.ACK, ACK.pack(1, 1, 1) + RANGE.pack((1 << 64) - 1, 1, 2)), "no range has 2 messages")
    refused(packet(Op.NACK, ACK.pack(1, 1, 1) + ITEM.pack(1, 1, -2, 1, 0)), "a span of -2 ns")
    refused(packet(Op.NACK, ACK.pack(1, 1, 1) + ITEM.pack(1, 1, 0, 1, 7)), "NACK: reserved")
    refused(packet(Op.OPEN, OPEN.pack(1, 0, 0, 0)), "a text of 0 bytes")
    refused(packet(Op.DONE, bytes(12), flags=3), "places and facts at once")


@pytest.mark.parametrize(
    "text",
    [b"[]", b"3", b"null", b"{}", b"{", b'{"a":NaN}', b'{"a":1}x', b"[" * 60_000, b'{"a":' * 9000, b'{"\xff":1}', b" "],
    ids=["list", "number", "null", "empty", "torn", "nan", "more", "deep", "deeper", "latin", "blank"],
)
def test_json_that_is_no_object_is_refused(text: bytes) -> None:
    refused(packet(Op.CALL, b"\1\0x" + text), "JSON")


def test_too_much_json_is_refused_by_both_ends() -> None:
    text = "x" * 65_536
    with pytest.raises(ProtocolError, match="JSON"):
        encode_packet(Call("x", {"a": text}))
    refused(packet(Op.CALL, b"\1\0x" + json.dumps({"a": text}).encode()), "JSON")
    with pytest.raises(ProtocolError, match="a text of 300 bytes"):
        encode_packet(Open(1, "x" * 300, "", {}))


def test_what_is_refused_deep_within_a_packet_behind_a_good_one_is_refused_for_good() -> None:
    """Views of the bytes live in the error's frames, while those of the good packet are cut off."""
    reader, found = PacketReader(), list[Received]()
    data = encode_packet(Ping(1), 3) + packet(Op.TXN, TXN.pack(1, 1, 0) + bytes(4))
    with pytest.raises(ProtocolError, match="TXN: 0 bytes are left") as caught:
        found.extend(reader.feed(data))
    assert found == [Received(Ping(1), 3)]
    with pytest.raises(ProtocolError) as again:
        list(reader.feed(encode_packet(Ping(2), 4)))
    assert again.value is caught.value
