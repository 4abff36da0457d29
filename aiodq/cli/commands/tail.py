"""`aiodq tail`: a topic's newest messages, also while its owner runs."""

import json as json_text
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Final

from cyclopts import Parameter, validators

from aiodq.cli.arguments import Place, whole
from aiodq.cli.exits import DONE
from aiodq.cli.names import known_topic
from aiodq.cli.output import check_read
from aiodq.cli.show import body_form, message_fields
from aiodq.storage.read.stored_message import StoredMessage

__all__ = ["tail"]

_POLL: Final = 0.2
_FLUSH_AT: Final = 1 << 16


def tail(
    store: Place,
    topic: str,
    /,
    *,
    number: Annotated[int, Parameter(name="-n", converter=whole, validator=validators.Number(gte=0))] = 10,
    follow: bool = False,
    json: bool = False,
) -> int:
    """Write a topic's newest messages to standard output, without consuming them.

    The store may be open in another process. Each message is followed by a newline. On a terminal, control characters
    are shown escaped, as in JSON.

    Args:
        store: the store's directory.
        topic: the topic's name.
        number: how many offsets before the end to begin.
        follow: go on with messages that are put later, until a signal or until nobody reads the output.
        json: write each message as a line of JSON, with its offset, time, tag, key and headers.
    """
    reader = known_topic(store, topic)
    end = reader.end_offset
    at = max(reader.begin_offset, end - number)
    # To that end and no further: a writer may be ahead of it by now.
    at = max(_write(reader.scan(at, end), at, json=json), end)
    while follow:
        time.sleep(_POLL)
        check_read()
        at = _write(reader.scan(at), at, json=json)
    return DONE


def _write(messages: Iterator[StoredMessage], at: int, *, json: bool) -> int:
    """Write messages as they come and return the offset after the last; `at` where there was none."""
    pending: list[bytes] = []
    size, form = 0, body_form()
    for message in messages:
        pending.append(json_text.dumps(message_fields(message)).encode() + b"\n" if json else form(message.body))
        at = message.offset + 1
        size += len(pending[-1])
        if size >= _FLUSH_AT:
            _flush(pending)
            size = 0
    _flush(pending)
    return at


def _flush(lines: list[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
    lines.clear()
