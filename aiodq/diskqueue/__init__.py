r"""The files of go-diskqueue, read and written: what NSQ keeps a topic's or a channel's overflow in.

Blocking, without an event loop. `read` takes over what such a queue holds, `write` and `DiskQueueWriter` make one.

A queue of the name N is a directory's files N.diskqueue.000000.dat, N.diskqueue.000001.dat and so on, and
N.diskqueue.meta.dat. A data file is records without a gap:

    offset  size  name     meaning
         0     4  length   i32, big-endian, bytes of the message
         4     -  message  as it was put

There is no checksum and no mark where a record begins. So damage shows only where it hits a length, and after it the
rest of the file is lost, as it is to go-diskqueue. The metadata is text, three lines: the depth; the number of the file
to be read and the position in it; the same for writing. Example: "20\n0,0\n0,570\n".

A file that has been read to its end is deleted. Where the next one begins is not written anywhere, and versions differ
in when they begin it (`RollRule`). A reader need not know: whatever the limit was, a file ends where it ends.

What is in a message is the caller's matter. nsqd puts its own in front: i64 nanoseconds since the Unix epoch and u16
attempts, both big-endian, and 16 bytes of id.
"""

from aiodq.diskqueue.files import list_queues
from aiodq.diskqueue.findings import Finding, FindingKind
from aiodq.diskqueue.metadata import DiskQueueMetadata
from aiodq.diskqueue.options import MAX_MESSAGE_BYTES, NSQD_MAX_BYTES_PER_FILE, DiskQueueExistsError, RollRule
from aiodq.diskqueue.reader import DiskQueueMessage, DiskQueueReader, read
from aiodq.diskqueue.writer import DiskQueueWriter, write

__all__ = [
    "MAX_MESSAGE_BYTES",
    "NSQD_MAX_BYTES_PER_FILE",
    "DiskQueueExistsError",
    "DiskQueueMessage",
    "DiskQueueMetadata",
    "DiskQueueReader",
    "DiskQueueWriter",
    "Finding",
    "FindingKind",
    "RollRule",
    "list_queues",
    "read",
    "write",
]
