"""Valid bytes of every format, made by the encoders: where every fuzzer starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD
from aiodq.format.columns import Columns
from aiodq.format.footer import IndexEntry, SegmentIndex, encode_footer
from aiodq.format.frame import encode_frames, read_prefix
from aiodq.format.journal import (
    LONGEST_RUN,
    ChannelImage,
    Op,
    OpKind,
    encode_block,
    encode_checkpoint,
    encode_journal_header,
)
from aiodq.format.layout import FRAME_PREFIX, KIND_BATCH, TRAILER
from aiodq.format.segment import SegmentHeader
from aiodq.format.transactions import Acks, Header, Origin, Puts, encode_commit, encode_header
from aiodq.format.transactions import Commit as Transaction
from aiodq.storage.bulk.commits import COMMITS, Commit, CommitKey, Staged, write_commit
from aiodq.storage.state.holds import HOLDS, Hold, write_hold
from aiodq.storage.state.store_identity import encode_identity
from aiodq.storage.state.topic.topic_meta import TopicMeta, save_meta
from aiodq.storage.state.transactions.transaction_origins import ORIGINS, TransactionOrigins
from aiodq.storage.state.watermark import WatermarkFile
from aiodq.testing import SimulatedFileSystem
from tests.fuzz.mend import SALT, mend_frames
from tests.fuzz.stores import as_row, small_store
from tests.fuzz.targets import BASE, CONTEXT, DISKQUEUE_MARK, START, TOPIC
from tests.fuzz.wire_targets import packet_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable

TIME = 1_700_000_000_000_000_000


def _frames(*puts: Columns, codec: int = CODEC_NONE, watermark: int = BASE) -> list[bytes]:
    encoded: list[bytes] = []
    first = BASE
    for columns in puts:
        encoded += encode_frames(
            columns, CONTEXT, first=first, watermark=watermark, time_ns=TIME, codec=codec, atomic=True
        )
        first += len(columns.bodies)
    return encoded


def _full() -> Columns:
    return Columns(
        [b"body", b"", b"x"],
        [TIME, TIME + 1, TIME],
        [0, TIME, 0],
        [TIME, 0, 0],
        ["tag", None, ""],
        [None, b"key", b""],
        [{"a": "b"}, {}, {"": "", "c": "d"}],
    )


def _control() -> bytes:
    length = FRAME_PREFIX.size + TRAILER.size
    return mend_frames(FRAME_PREFIX.pack(length, 0, 0xE3, 0, 0, 1, 0, TIME) + TRAILER.pack(length))


def _run_of_three() -> list[bytes]:
    """Three small batches as one run; the encoder makes runs only of large puts, so the flags are set by hand."""
    made: list[bytes] = []
    for number, flags in enumerate((0x200, 0x300, 0x100)):
        (frame,) = encode_frames(
            Columns([b"a", b"b"]), CONTEXT, first=BASE + 2 * number, watermark=BASE, time_ns=TIME, atomic=True
        )
        assert frame[8] == KIND_BATCH
        made.append(mend_frames(frame[:10] + flags.to_bytes(2, "little") + frame[12:]))
    return made


def _sealed(frames: Iterable[bytes], *, sealed: bool = True) -> bytes:
    """Return a whole segment."""
    index = SegmentIndex()
    data = SegmentHeader(BASE, TOPIC, TIME, SALT).encode()
    end = 0
    for raw in frames:
        frame = read_prefix(raw, 0, CONTEXT, position=len(data), limit=1 << 20)
        entry = IndexEntry(len(data), frame.first - BASE, frame.records, 1, frame.time_ns)
        index.add(entry, joined=bool(frame.flags & 0x100), flags=frame.flags, raw_bytes=frame.raw)
        data += raw
        end = max(end, frame.stop - BASE)
    return data + (encode_footer(index, data_end=len(data), end=end, salt=SALT)[1] if sealed else b"")


def _footers() -> list[bytes]:
    """Return footers behind as many zeros as the frames that they are about."""
    made = []
    for entries in (0, 1, 3):
        index = SegmentIndex()
        for number in range(entries):
            entry = IndexEntry(START + 4096 * number, 5 * number, 5, 1, TIME + number)
            index.add(entry, joined=False, flags=0, raw_bytes=40)
        data_end = START + 4096 * max(entries - 1, 0) + 64
        made.append(bytes(data_end) + encode_footer(index, data_end=data_end, end=5 * entries, salt=SALT)[1])
    return made


def _journals() -> list[bytes]:
    ops = [Op(OpKind.ACK, 5), Op(OpKind.ACK, 7, 3), Op(OpKind.FLOOR, 4), Op(OpKind.REQUEUE, 6, value=2)]
    ops += [Op(OpKind.DEFER, 6, 1500, TIME), Op(OpKind.SEEK, 3)]
    generation = 0xABCD_0000_0002
    header = encode_journal_header(generation)
    counted = [Op(OpKind.REQUEUE, 6, 3, 1), Op(OpKind.REQUEUE, 9, LONGEST_RUN, 2)]
    return [
        header,
        header + encode_block(ops[:1], generation) + encode_block(ops, generation),
        header + encode_block(counted, generation),
    ]


def _checkpoints() -> list[bytes]:
    images = [ChannelImage(0), ChannelImage(5, [(7, 9), (12, 13)], {5: 2, 10: 1}, {10: TIME}, TIME - 9)]
    return [bytes(encode_checkpoint(image, 0xABCD_0000_0001)) for image in images]


def _file(path: str, fs: SimulatedFileSystem) -> bytes:
    data = fs.image()[path]
    assert data is not None
    return data


def _topics() -> list[bytes]:
    made = []
    for meta in (TopicMeta(UUID(int=7)), TopicMeta(UUID(int=8), 12, {"a": 0, "b.c-d_E": 3})):
        fs = SimulatedFileSystem({"/t": None})
        save_meta(fs, "/t", meta)
        made.append(_file("/t/topic.json", fs))
    return made


def _commits() -> list[bytes]:
    staged = [Staged(f"{TIME + number:020d}-{number:032x}.seg", 3 + number) for number in range(3)]
    whole = Commit(CommitKey("once", once=True), {"a": (staged[0], staged[1]), "b": (staged[2],)}, TIME)
    stream = CommitKey("stream x", 7)
    fs = SimulatedFileSystem({f"/s/{COMMITS}": None})
    made = []
    for commit in (
        whole,
        whole.at("a", 12),
        Commit(stream, {"a": (staged[0],)}, TIME),
        Commit(stream, done=True, run="r"),
    ):
        write_commit(fs, "/s", commit)
        made.append(_file(f"/s/{COMMITS}/{commit.key.file}", fs))
    return made


def _holds() -> list[bytes]:
    fs = SimulatedFileSystem({"/s": None})
    made = []
    for hold in (Hold({"a": 5, "b": 0}, None), Hold({}, ("a*", "b")), Hold({"c": 9})):
        write_hold(fs, "/s", "h", hold)
        made.append(_file(f"/s/{HOLDS}/h.json", fs))
    return made


def _slots() -> list[bytes]:
    fs = SimulatedFileSystem({"/t": None})
    slots = WatermarkFile(fs, "/t/watermark")
    slots.write(3, SALT)
    slots.write(5, SALT)
    slots.close()
    return [_file("/t/watermark", fs)]


def _origins() -> list[bytes]:
    made = []
    for known in ([Origin(9, 4)], [Origin((1 << 64) - 1, (3 << 40) + 1), Origin(0, 2)]):
        fs = SimulatedFileSystem({"/s": None})
        TransactionOrigins(fs, "/s", known, TIME).keep(TIME)
        made.append(_file(f"/s/{ORIGINS}", fs))
    return made


def _transactions() -> list[bytes]:
    header = Header(TIME, 99)
    first = Transaction([Acks("t", "c", [(1, 2), (5, 9)])], [Puts("u", 3, Columns([b"a", b"b"], tags=["x", None]))])
    commits = [
        first,
        Transaction([], [Puts("v", 0, Columns([b"c"])), Puts("u", 3, _full())]),
        Transaction([Acks("t", "d", [])]),
        Transaction([Acks("t", "c", [(2, 3)])], [], Origin(9, 4)),
    ]
    blocks = [encode_commit(commit, TIME + number, TIME, 99) for number, commit in enumerate(commits)]
    return [b"".join((encode_header(header), *blocks)), encode_header(header) + blocks[0] + bytes(64)]


def _diskqueues() -> list[bytes]:
    records = [len(body).to_bytes(4, "big") + body for body in (b"one", b"", b"three" * 9)]
    whole, torn = b"".join(records), b"".join(records)[:-3]
    several = ((b"3\n0,0\n0,60\n", whole), (b"", whole, torn), (b"9\n0,7\n1,7\n", whole, torn))
    return [DISKQUEUE_MARK.join(parts) for parts in several]


def seeds(name: str) -> list[bytes]:
    """Return valid inputs for a target, each of them small."""
    compact = _frames(Columns([b""]), Columns([b"one"]), Columns([b"0123456789"]))
    batch = _frames(Columns([b"a", b"b"]), Columns([b"tag"], tags=["t"]), _full())
    packed = _frames(Columns([b"abcdefgh" * 20] * 3), codec=CODEC_ZSTD)
    run = _run_of_three()
    kinds = {
        "header": [SegmentHeader(BASE, TOPIC, TIME, SALT).encode()],
        "compact": [b"".join(compact)],
        "batch": [b"".join(batch), b"".join(packed), b"".join((*batch[:1], _control(), compact[0]))],
        "runs": [b"".join(run), b"".join((*run, *run[:1]))],
        "footer": _footers(),
        "journal": _journals(),
        "checkpoint": _checkpoints(),
        "topic": _topics(),
        "commit": _commits(),
        "hold": _holds(),
        "origins": _origins(),
        "identity": [encode_identity(UUID(int=7))],
        "slots": _slots(),
        "transactions": _transactions(),
        "diskqueue": _diskqueues(),
        "packets": packet_seeds(),
        "segment": [
            _sealed(compact, sealed=False),
            _sealed(batch),
            _sealed(run),
            _sealed([*compact[:2], *packed[:0]]),
        ],
        "store": [as_row(small_store())],
    }
    return kinds[name]
