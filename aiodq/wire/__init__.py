"""The wire protocol between the processes of a shared store and its owner: packets, without I/O. The specification.

A shared store is owned by one process; the others talk to it over a Unix stream socket, `#socket` in the store's
directory. A connection carries packets in both directions, one after the other. This page is about their bytes,
version 2; `aiodq.shared` describes who connects when, and what is repeated after a change of owners. All numbers are
little-endian. u8, u16, u32, u64 are unsigned, i32 and i64 signed; times are i64 nanoseconds. `tests/wire/test_spec.py`
reads the tables below and checks them against the code: neither changes without the other.


## Packet

PACKET: 12 bytes, then the payload

    offset  size  name      meaning
         0     4  length    of the whole packet, this field included: 12 to the receiver's limit
         4     1  op        see Operations
         5     1  flags     0, or flags of the operation
         6     2  zero      reserved, 0
         8     4  request   the number that a client gave its request, repeated by the answer; 0 if there is no request

Requests of a connection are answered in any order. A client numbers them from 1 on, and does not reuse a number before
it is answered. A receiver accepts a length only up to its limit: FIRST_PACKET until HELLO and WELCOME are exchanged,
then for an owner what WELCOME says, and for a client LARGEST, as a stored message is delivered however large it is.
Anything that violates this page is a `ProtocolError` and ends the connection: there is no way to find the next packet.


## Operations

OPERATIONS

    HELLO      0x01    client  the first packet: who it is. Answer: WELCOME, or FAIL and the end
    OPEN       0x02    client  names a topic, or a channel of one, and gives it a handle. Answer: DONE
    PUT        0x03    client  messages for a topic. Answer: DONE with their offsets
    WANT       0x04    client  how many messages of a channel it is ready to take. No answer
    ACK        0x05    client  settles messages. Answer, if it has a request: DONE once that is durable
    NACK       0x06    client  requeues messages. Answer likewise
    TOUCH      0x07    client  restarts the timeout of messages. Answer likewise
    RELEASE    0x08    client  gives messages back, as if they had never been delivered. Answer likewise
    REJECT     0x09    client  rejects a message. Answer likewise
    TXN        0x0A    client  a transaction: puts and acks, all or none. Answer: DONE
    CALL       0x0B    client  anything rare, by name. Answer: DONE
    RESUME     0x0C    client  what it held of a channel before it connected. Answer: DONE with what is left to it
    PING       0x0D    client  asks whether the owner's loop runs. Answer: PONG
    BYE        0x0E    client  it leaves; its messages are made ready again. No answer
    WELCOME    0x81    owner   the answer to HELLO
    DONE       0x82    owner   a request was done
    FAIL       0x83    owner   a request was not done, and why
    DELIVER    0x84    owner   messages of a channel, which are in flight from now on
    GONE       0x85    owner   messages were taken from the client: they timed out, or the channel was purged or moved
    FIGURES    0x86    owner   the counts of a channel and its topic
    HANDOVER   0x87    owner   this owner ends: connect again
    PONG       0x88    owner   the answer to PING


## Payloads

HELLO: 28 bytes, then the program's name, UTF-8, up to 255 bytes

    offset  size  name      meaning
         0     2  newest    the newest version that the client speaks
         2     2  oldest    the oldest one
         4     4  pid       the client's process
         8     8  producer  a number that the client's process chose at random, which identifies its puts
        16     8  epoch     of the last owner that it knew, 0 for none
        24     4  zero      reserved, 0

WELCOME: 32 bytes

    offset  size  name      meaning
         0     2  version   of the connection: the newest that both speak
         2     2  zero      reserved, 0
         4     4  pid       the owner's process
         8     8  epoch     a number that the owner chose, which identifies its deliveries
        16     4  largest   bytes of the largest packet that the client may send from now on
        20     4  zero      reserved, 0
        24     8  reclaim   i64, how long clients may claim by RESUME what they hold; 0 if it is not said

An odd epoch is a random number. An even one is the wall time at which the owner began, in nanoseconds, but for the
lowest 22 bits, which are random: of two that are even, the owner with the greater one began later.

OPEN: 8 bytes, then the topic's name, the channel's, and options as JSON

    offset  size  name      meaning
         0     4  handle    chosen by the client, for each connection again
         4     1  topic     bytes of the topic's name, 1 to 255
         5     1  channel   bytes of the channel's name, 0 for the topic itself
         6     2  zero      reserved, 0

The options are those of `aiodq.shared.encoding.options_json`. Those of a topic may say `stored`: they were on disk
once, as named for it. The options that concern its data are then taken from disk, and the others as they were last
named by any client. The answer has the effective options, `paused` and `stored`, a topic's `uuid` once something of it
exists, and what tells a channel from other ones of its name (`made`), if that is known; the CALL `changed` with the
handle is answered in the same way as soon as one of them changes.

With the flag EXISTING, since version 2, nothing is made: the client knows that the topic, or the channel, existed. If
it does not, the answer is FAIL with QueueShutDown. The options may then have the `uuid` of the topic that is meant, or
the `made` of the channel: another one of that name does not count, unless an earlier aiodq has made it. A client sends
the flag with whatever it opens again.

PUT: 16 bytes, then FRAMES

    offset  size  name      meaning
         0     4  handle    a topic's
         4     8  sequence  above that of the client's previous put into that topic; it counts once
        12     4  count     messages, at least 1, consecutive in the log

With the flag EACH, every message is a put of its own: they need not be stored together. Without it, it is all or none.
The answer to the topic's OPEN says how many puts may be unanswered (`window`). An owner may refuse as QueueFull what
waits for room far beyond that, or is too much to keep; and it reads a large packet only once it has room for all of it.

WANT: 12 bytes

    offset  size  name      meaning
         0     4  handle    a channel's
         4     8  total     messages that the client is ready to receive by this handle in all, those received included

It may be less than before: the client releases messages that were already on their way. Before a client has wanted
PREFETCHED messages in all, it wants none ahead of its getters.

ACK, RELEASE, GONE: 16 bytes, then ranges

    offset  size  name      meaning
         0     4  handle    a channel's
         4     4  count     ranges, at least 1
         8     8  epoch     of the owner that delivered them

If some of several messages, here or in NACK and TOUCH, were taken from the client before, only these are refused, and
the answer is FAIL; for an ACK, GONE names them first.

RANGE: 20 bytes

    offset  size  name      meaning
         0     8  first     offset of the first message
         8     8  delivery  its delivery number; the next message has the next one
        16     4  count     messages, at least 1

RESUME: 16 bytes as ACK, but `count` may be 0, then HELD ranges

HELD: 24 bytes

    offset  size  name      meaning
         0    20  range     RANGE
        20     4  attempts  how often each was delivered

A client that has another owner claims what it holds by the epoch, and the delivery numbers, of the owner that has
delivered it, which need not be the last one. Of several clients that claim a message, who got it last has it.

DONE has, as `held`, the messages that the client holds again: rows of a first offset, its new delivery number, and a
count. The others were settled, or another client has them. A client that has claimed all of its messages makes the
CALL `back`. The owner waits for these calls, for a limited time, before it delivers messages from before its start.

NACK, TOUCH: 16 bytes as ACK, then items

ITEM: 32 bytes

    offset  size  name      meaning
         0     8  offset    the message's
         8     8  delivery  its delivery number
        16     8  span      i64: NACK: until it is ready again; TOUCH: its timeout. UNSET: by the channel's options
        24     4  attempts  how often it counts as delivered
        28     4  zero      reserved, 0

REJECT: 32 bytes, then the reason and the error, UTF-8

    offset  size  name      meaning
         0     4  handle    a channel's
         4     4  attempts  how often it counts as delivered
         8     8  epoch     of the owner that delivered it
        16     8  offset    the message's
        24     8  delivery  its delivery number

TEXTS: 4 bytes for each, then its UTF-8, up to TEXT bytes: the end of REJECT

TXN: 12 bytes, then the payloads of ACK, then those of PUT, each after its u32 length

    offset  size  name      meaning
         0     8  sequence  by which a repeated one is recognised; it counts once
         8     2  acks      number of ACKs
        10     2  puts      number of PUTs

The upper 24 bits of the sequence are a lane of the client, which has one transaction at a time in flight; the sequences
of a lane rise. All of it is done, or nothing; nothing if the client no longer holds one of the messages. The `sequence`
of its PUTs is 0, and no topic is in two of them. FIGURES report its changes before DONE. If it is repeated, the answer
is DONE if it was committed, even if its topics were deleted since. The CALL `withdraw` with a `sequence` withdraws one
that waits for room: DONE says in `result` whether it was committed.

CALL: 2 bytes, then the name and its arguments as JSON

    offset  size  name      meaning
         0     2  name      bytes of the name, 1 to 255

`aiodq.shared.requests.calls` has most of them; DONE has what one returns as `result`. One with a handle is done after
the client's earlier PUTs into that topic, except those that wait for room; an owner that knows this order says
`orderly` in its answer to OPEN of a topic. The CALL `withdraw` with a topic's handle and `sequences` withdraws PUTs
that wait for room: each is answered with FAIL. The CALL `forget` with a `request` ends a `join`, `drain` or `backup`
whose caller was cancelled, which is answered with FAIL. `delete_topic` may have the `uuid` of the topic that is meant,
as a repeated one has: then no other topic of that name is deleted. `configure`, `pause`, `seek`, `delete_channel` and
`delete_topic` may have a `change`, a number above 0 and below CHANGES that the client chose at random: if they are
repeated, they count once. A repeated deletion has as `asked` the epoch of the owner that it was first sent to, with
which ended whatever was only in that owner's memory. `ended` with
a channel's handle is answered with FAIL once the channel no longer exists, and with DONE, which has the fields of FAIL
as the reason, when it cannot deliver what a client wants.

DONE: nothing, PLACED if the request was PUT, or JSON if it was OPEN, RESUME or CALL: see its flags

PLACED: 12 bytes

    offset  size  name      meaning
         0     8  first     the offset of the first message
         8     4  count     messages

FAIL: 24 bytes, then the error's name, the path and the text, UTF-8

    offset  size  name      meaning
         0     1  name      bytes of the name, 1 to 255
         1     1  retriable 1 if the same request may succeed later, else 0
         2     2  path      bytes of the path
         4     4  errno     i32, the system's number, 0 for none
         8     8  position  i64, the byte in the file, -1 for none
        16     4  pid       the process it concerns, 0 for none
        20     4  text      bytes of the text, up to TEXT

With a request of 0, it is the last packet of its connection: this page was violated, or the owner takes in no other
client, which it says before HELLO.

DELIVER: 24 bytes, then FRAMES

    offset  size  name      meaning
         0     4  handle    a channel's
         4     4  attempts  how often each was delivered, this time included
         8     8  first     the offset of the first message; the others follow
        16     8  delivery  its delivery number; the next message has the next one

FIGURES: 56 bytes

    offset  size  name      meaning
         0     4  handle    a channel's, or a topic's: then `ready`, `flying` and `deferred` are 0
         4     4  zero      reserved, 0
         8     8  ready     messages that may be delivered
        16     8  flying    messages in flight
        24     8  deferred  messages that are not due yet
        32     8  begin     the topic's first offset kept
        40     8  end       the offset after its last
        48     8  durable   below which everything survives a power cut

PING, PONG: 8 bytes

    offset  size  name      meaning
         0     8  token     the client's, repeated by the owner

HANDOVER: 8 bytes

    offset  size  name      meaning
         0     8  epoch     of the owner that ends

BYE has no payload. In channels with `max_attempts`, the messages of a client that leaves count as delivered, except
those sent beyond its last WANT, and so do those of a killed process: otherwise a message that kills its process would
go from one to the next for ever. If a killed process had wanted PREFETCHED or more, only its oldest message counts.

FRAMES are frames of messages as in a segment (`aiodq.format`), with a base and a salt of 0: the first message is number
0. JSON is an object in UTF-8, of at most JSON bytes; at the end of a payload, it may be absent if it is empty.


## Numbers

NUMBERS

    VERSION       2           the newest version that this code speaks
    OLDEST        1           the oldest one
    FIRST_PACKET  65536       bytes of the largest packet before HELLO and WELCOME are exchanged
    LARGEST       0x7FFFFFFF  the largest value of `largest`
    JSON          65536       bytes of JSON in a packet
    TEXT          65536       bytes of a text
    PREFETCHED    16          messages of a channel in all, below which none is wanted ahead of a getter
    CHANGES       0x4000000000000000  what the number of a change is below
    UNSET         -1          a span that is not given
    EACH          0x01        flag of PUT
    EXISTING      0x01        flag of OPEN
    PLACES        0x01        flag of DONE: PLACED follows
    FACTS         0x02        flag of DONE: JSON follows


## Versions

HELLO and WELCOME, and the packet itself, are the same in all versions. An owner also speaks the version before its own,
and so does a client. Version 2 has EXISTING; all else is as in version 1.
Reserved bytes are 0 and are checked: giving them a meaning takes another version. Golden files of each version are kept
in `tests/data/golden/wire`; they are never rewritten, only added to.
"""

from __future__ import annotations

__all__: list[str] = []
