"""Bytes to structs and back, without I/O. This page is the specification of the on-disk format, version 1.

Channel journals and checkpoints are files of their own; `aiodq.format.journal` describes them. This page is about
segments. All numbers are little-endian. u8, u16, u32, u64 are unsigned, i64 is signed; times are i64 nanoseconds since
the Unix epoch; an *offset* numbers records, a *position* numbers bytes. `tests/format/test_spec.py` reads the tables
below and checks them against the code: neither changes without the other.


## Segment

```
position 0        64                                                data end                    file size
         +--------+---------+---------+-- ... --+---------+---------+---------+-- ... --+---------+
         | header | frame   | frame   |         | frame   | frame   | entry   |         | tail    |
         +--------+---------+---------+-- ... --+---------+---------+---------+-- ... --+---------+
                  |<----------- frames, 8-byte aligned ------------>|<----- footer, if sealed --->|
```

A segment holds a range of one topic's records; its file is named by the offset of the first. Frames are appended until
it is sealed: then a footer is written after them and nothing in it changes any more. Without a footer it is scanned
from its header on. The footer is derived from the frames: if it is lost, it is rebuilt. In a segment without a footer,
zeros may follow the last frame up to the file's end, which its owner wrote ahead: they count as not written yet, not as
damage. Nothing follows a footer.

SEGMENT_HEADER: 64 bytes

    offset  size  name      meaning
         0     8  magic     89 41 49 4F 44 51 0D 0A; as in PNG, a transfer that mangles text shows at once
         8     2  version   1
        10     1  checksum  the frames' checksum algorithm, see Numbers
        11     1  zero      reserved
        12     4  salt      starting value of the frames' checksums
        16     8  base      offset of the first record; frames count from it
        24    16  topic     uuid of the topic, as in RFC 9562
        40     8  created   i64, when the segment was begun
        48    12  zeros     reserved
        60     4  crc       CRC-32 of the 60 bytes before it, starting at 0, in every version and for every algorithm

Reserved bytes are written as 0 and ignored when read. Frames store their offsets only relative to `base`, and their
watermark only relative to their offset: a segment that was written elsewhere (staged) becomes part of a topic by
patching `base` and `crc` here, without touching a frame. Its salt stays.


## Frame

Everything after the header is frames. Each begins at a multiple of 8 and is a multiple of 8 bytes long.

```
    |<--------------------------------- length --------------------------------->|
    +--------+-----+------+--------+-------+----------+-----+------+----...------+--------+
    | length | crc | kind | detail | flags | relative | lag | time | by the kind | length |
    +--------+-----+------+--------+-------+----------+-----+------+----...------+--------+
                   |<------------------- covered by the checksum ------------------------>|
```

FRAME_PREFIX: 28 bytes

    offset  size  name      meaning
         0     4  length    of the whole frame, this field and the trailing length included
         4     4  crc       checksum of everything after this field to the frame's end
         8     1  kind      what the frame is, see Numbers
         9     1  detail    batch: the codec of its payload. Compact record: its padding, 0 to 7. Below 8 in any kind
        10     2  flags     see Numbers
        12     4  relative  offset of the first record, less the segment's base
        16     4  lag       offset of the first record, less the watermark
        20     8  time      i64, when the records were put

TRAILER: 4 bytes

    offset  size  name      meaning
         0     4  length    the first field again, in the frame's last four bytes

**Checksum.** The algorithm is the header's; the default is CRC-32 as in zlib, PNG and gzip. It does not cover the
first length, but it covers the trailing one, and the two must be equal. It does not start at 0, but at the segment's
salt: two different starting values always give different sums for the same bytes. So a frame that was copied into a
message's body, such as part of a whole segment file stored in a queue, is not a frame of the segment that holds the
body, even to a reader that searches for frames after damage. An owner salts all segments of a topic alike, with the
CRC-32 of the topic's uuid, so that the salt is known even if a header is lost. The price: a topic's own segment files,
stored in the topic itself, cannot be told apart that way.

**Watermark.** The offset below which everything was durable when the frame was written: `relative` + base - `lag`, but
at least 0. LAG_UNKNOWN means that it is not known and counts as a watermark of 0. Recovery needs it: bytes that fail
their check had been durable, and are damage, if a good frame with a watermark beyond them follows; otherwise they were
never synced, and the log ends before them.

**Run.** A put that does not fit one frame is a run of batches with nothing between them, all in one segment: the
first has the flag CONTINUED, the last CONTINUES, those between have both. A run counts as a whole or not at all: if its
last frame is missing, or any is damaged, no reader returns any of it. A put of one frame has neither flag.

**Control kinds** carry no records. A reader checks them like any frame, and skips those that it does not know.
`aiodq.format.producers` describes the ones in use. A segment that holds only control frames is continued like one
without frames: its successor would have the same name.


## Compact record

One record that has only a body:

```
    +-----------------+------+---------+--------+
    | prefix          | body | padding | length |
    +-----------------+------+---------+--------+
      28                       0 to 7    4
```

`detail` is the padding, `flags` is 0; the body is the rest: length - 32 - `detail` bytes. The padding is zeros.


## Batch

One or more records with consecutive offsets, column by column:

```
    +--------+-------+--------+-----+---------+---------+--------+
    | prefix | count | stored | raw | payload | padding | length |
    +--------+-------+--------+-----+---------+---------+--------+
      28       4       4        4     `stored`  0 to 7    4
```

BATCH_HEADER: 40 bytes

    offset  size  name      meaning
         0    28  prefix    FRAME_PREFIX
        28     4  count     records, 1 to MAX_RECORDS
        32     4  stored    bytes of the payload in the file
        36     4  raw       bytes of the payload before compression; `stored` without

A batch has at least 48 bytes. `raw` is at least 4 for each record, and at most 1 MiB or 64 times `stored`, whichever
is more (`raw_limit`). A writer that would exceed that stores the payload uncompressed, as it does if compression gains
nothing. With codec 1 the payload is one zstd frame whose header states its content size, equal to `raw`.

A writer closes a batch at FRAME_BYTES of messages or FRAME_RECORDS records; a larger message gets a batch of its own.

PAYLOAD: `count` items in each column but the first, the columns present in this order, no gaps

    column          flag      each  meaning
    transaction     TRANSACTION  8  u64, once: the number of the transaction that put all of them
    times           TIMES     8     i64, where records differ from the frame's time
    dues            DUES      8     i64, not to be delivered before; 0 for at once
    expiries        EXPIRIES  8     i64, not to be delivered after; 0 for never
    body lengths    -         4     u32
    tag lengths     TAGS      4     u32, NULL_LENGTH for no tag, as opposed to an empty one
    key lengths     KEYS      4     u32, NULL_LENGTH for no key
    header lengths  HEADERS   4     u32, NULL_LENGTH for no headers
    tags            TAGS      -     UTF-8
    keys            KEYS      -     bytes
    headers         HEADERS   -     see below
    bodies          -         -     bytes; they end where the payload ends

One record's headers:

HEADERS_BLOB: 2 bytes, then the headers, and nothing after them

    offset  size  name      meaning
         0     2  count     headers

HEADER: 8 bytes, then the name and the value

    offset  size  name      meaning
         0     4  name      bytes of the name, UTF-8
         4     4  value     bytes of the value, UTF-8


## Footer

Index entries, then a tail of fixed size in the file's last bytes. An entry covers consecutive whole frames and whole
runs. The index is sparse: an entry begins with the first frame at least INDEX_STRIDE bytes after the beginning of the
previous entry, but never inside a run. Positions rise strictly, relative offsets do not fall.

INDEX_ENTRY: 32 bytes

    offset  size  name      meaning
         0     8  position  of the entry's first frame in the file
         8     4  first     offset of its first record, less the segment's base
        12     4  records   how many it holds
        16     4  frames    how many it holds
        20     4  zero      reserved
        24     8  newest    i64, the newest of its frames' times

FOOTER_TAIL: 96 bytes

    offset  size  name      meaning
         0     8  data_end  position where the frames end and the index begins, a multiple of 8
         8     4  entries   of the index
        12     4  index_crc CRC-32 of the entries, starting at 0
        16     4  flags     all frames' flags, or-ed
        20     4  salt      the segment header's, so that it is known where that is lost
        24     8  records   in all
        32     8  end       offset after the last record, less the base; more than `records` if damage left a gap
        40     8  raw       bytes of all bodies and payloads before compression
        48     8  oldest    i64, of the frames' times
        56     8  newest    i64, of the frames' times
        64     8  zeros     reserved
        72     4  frames    in all
        76     4  footer    bytes of entries and tail: 32 * `entries` + 96
        80     4  zero      reserved
        84     4  crc       CRC-32 of the tail's 84 bytes before it, starting at 0
        88     8  magic     89 41 49 4F 44 51 45 0A

A segment is sealed if and only if its last 8 bytes are the tail's magic. Frames cannot end like that: they end with
their length, a multiple of 8, which the magic's last four bytes are not.


## Numbers

NUMBERS

    VERSION         1           what this code writes, and the newest it reads
    ALIGNMENT       8
    CRC32           1           checksum algorithm: zlib's CRC-32
    CODEC_NONE      0
    CODEC_ZSTD      1
    KIND_BATCH      0xB7
    KIND_COMPACT    0xC5
    CONTROL_KINDS   0xE0-0xEF
    BATCH_MIN       48          the smallest batch
    COMPACT_MIN     32          the smallest frame
    MAX_FRAME       0xFFFFFFF8  the largest frame
    MAX_RECORDS     32768       records in a batch
    MAX_RELATIVE    0xFFFFFFFF  records in a segment
    MAX_BASE        0x7FFFFFFF00000000  the last offset at which a segment may begin
    LAG_UNKNOWN     0xFFFFFFFF  `lag`: no watermark
    NULL_LENGTH     0xFFFFFFFF  a length: no value
    FRAME_BYTES     65536       bodies a writer puts into one batch
    FRAME_RECORDS   1000        records a writer puts into one batch
    INDEX_STRIDE    4096        bytes between two index entries, at least

FLAGS

    TIMES           0x0001
    DUES            0x0002
    EXPIRIES        0x0004
    TAGS            0x0008
    KEYS            0x0010
    HEADERS         0x0020
    TRANSACTION     0x0040      see `aiodq.format.transactions`
    CONTINUES       0x0100      the frame belongs to the same put as the one before it
    CONTINUED       0x0200      the next frame belongs to the same put


## Reading

*A length that was read is trusted only after it was checked against what is there*: a frame's against the end of the
frames, a payload's against its frame, an item's against its payload, a footer's against the file. Nothing is allocated
from such a number before that. What a compressed payload may claim is bounded by `raw_limit`, what is allocated for
each record by MAX_RECORDS. A frame's trailing length can be checked before the frame is read as a whole, which detects
most wrong lengths at the cost of four bytes.

*Forward* (`decode_frames`): prefix; length a multiple of 8, within bounds and within the file; kind; checksum; then
the content. Frames that are only skipped are checked too, as one wrong bit in kind or offset makes a record look like
something to skip. The fast path for compact records leaves the trailing length to the checksum, which covers it.

*Backward* (`frame_before`): the 4 bytes before a frame's end are its length; the frame begins that many bytes earlier,
where the same length must stand. Start at the data end: by the tail if sealed, else by a scan.

*After damage* (`candidate_frames`): frames begin at multiples of 8, and 8 bytes from their beginning are a known kind
and a detail below 8. Any such place whose lengths and checksum are valid is a frame.

*By offset or time*: the index gives the entry, from which frames are skipped.

CorruptionError: the bytes are not what was written. Headers and footers: magic, size, checksum, or a footer that does
not fit the file. Frames: an unknown kind, a length out of bounds, different lengths, a wrong checksum, and, despite a
valid checksum (so written by something other than aiodq), unknown flags, lengths that do not add up, text that is not
UTF-8, a payload that does not decompress or that is larger than allowed.
FormatVersionError: the bytes are valid, but newer than the reader: another version than 1, an unknown checksum or
codec. The file must be left as it is.
MissingExtraError: a payload is compressed and the package for it is not installed.
A frame that a buffer holds only in part is no error: read on. If the file does not hold all of it either, it is one.


## Versions

A segment has one version throughout. The place and meaning of `magic`, `version` and the header's `crc` are the same in
all versions, so that each version recognises a newer one and leaves it untouched. Released versions can be read for
ever; new segments are written in the newest. Within a version, these may be added: codecs and checksums (by new
numbers, on which older readers raise FormatVersionError), control kinds, and meanings for reserved bytes that may be
ignored. Anything else (a column, a flag, a kind with records) is a new version, since older readers would take it for
damage. `tests/data/golden/v1` keeps files of this version; they are never rewritten, only added to.
"""

from __future__ import annotations

__all__: list[str] = []
