"""The options of readers and writers, checked before anything is read."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from glob import glob, has_magic
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from aiodq.errors import InvalidOptionError
from aiodq.format.codecs import codec_number
from aiodq.names import check_topic_name, is_ephemeral
from aiodq.options import LARGEST_BODY, StoreOptions
from aiodq.spark.objects import find_urls, full_path, is_url
from aiodq.spark.values import (
    bound_of,
    choice_of,
    count_of,
    delay_of,
    json_of,
    labels_of,
    list_of,
    names_of,
    size_of,
    time_of,
)
from aiodq.storage.io.os_errors import os_errors
from aiodq.storage.read.arrow_reader import columns_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiodq.spark.values import Bound, Moment

__all__ = [
    "ReadOptions",
    "WriteOptions",
    "batch_options",
    "check_topic",
    "read_options",
    "stream_options",
    "write_options",
]


_LONGEST_NAME: Final = 141
"""The most characters of a write's name: with the prefix for a stream or a single write, 150 fit into a file's name."""
_STREAM_NAMES: Final = (
    "maxRecordsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "hold",
    "holdAdvance",
)
_NAMES: Final = (
    "path",
    "paths",
    "topic",
    "topics",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "tags",
    "columns",
    "splitBytes",
    "minPartitions",
    "verify",
    "failOnDataLoss",
    *_STREAM_NAMES,
)
_HINTS: Final = {
    "assign": "topics, or startingOffsets",
    "kafka.bootstrap.servers": "path",
    "maxfilespertrigger": "maxRecordsPerTrigger",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "startingversion": "startingOffsets",
    "subscribe": "topics",
    "txnversion": "txnId, made of application and version,",
}
"""Options of Spark's other sources, and those that their users may mean here."""
_OF_TABLES: Final = ("provider", "location")
"""Options that Spark adds for a table of its catalog."""
_VIEW: Final = "CREATE TEMPORARY VIEW … USING aiodq OPTIONS (path '…')"
_WRITE_NAMES: Final = (
    "path",
    "topic",
    "txnId",
    "txnRun",
    "txnAppId",
    "segmentBytes",
    "maxMessageBytes",
    "compression",
    "repeatedHeaders",
    "checkpointLocation",
    "queryName",
)
"""The last two are Spark's own, which it passes to the source."""
_CODECS: Final[Mapping[str, str | None]] = {"none": None, "zstd": "zstd"}
_REPEATED: Final[Mapping[str, Literal["first", "last"] | None]] = {"error": None, "first": "first", "last": "last"}
_SEGMENT_BYTES: Final = 64 << 20
_TRIGGER_DELAY: Final = 900.0
"""Kafka's, too."""


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read.

    Attributes:
        stores: the directories, in the order given.
        topics: names, or patterns with `*`, `?` or `[…]`; None: all topics.
        starting, ending: the first offset, and the offset after the last.
        starting_ns, ending_ns: the first time, and the time after the last; None: no bound.
        tags: only messages with one of these tags are read; None: all.
        columns: the columns that are decoded.
        split_bytes: about how many bytes one task reads; None: as suits the cores.
        min_partitions: the least number of tasks, as far as the read can be divided; None: any number.
        verify: compare checksums.
        strict: fail if messages are missing or damaged, instead of going on after them.
        most_records, most_bytes: about how much one batch of a stream reads; None: all there is.
        hold: the name of the hold that keeps what a stream has not read yet; None: no hold.
        pattern: a regular expression that the whole name of a topic has to match; None: any name.
        least_records: the number of messages that a stream waits for before it makes a batch; None: 1.
        longest_delay: the longest that it waits, in seconds.
        advance_hold: whether each batch releases what the batch before has read; otherwise the user moves the hold.
    """

    stores: tuple[str, ...]
    topics: tuple[str, ...] | None
    starting: Bound
    ending: Bound
    starting_ns: Moment | None
    ending_ns: Moment | None
    tags: frozenset[str] | None
    columns: tuple[str, ...]
    split_bytes: int | None
    verify: bool
    strict: bool
    most_records: int | None
    most_bytes: int | None
    hold: str | None = None
    advance_hold: bool = True
    min_partitions: int | None = None
    pattern: str | None = None
    least_records: int | None = None
    longest_delay: float = _TRIGGER_DELAY


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write.

    Attributes:
        store: its directory.
        topic: the topic of all rows, whatever their column says; None: each row names its own.
        name: identifies a write or a stream if it is repeated; None: a write that is not repeated.
        segment_bytes: about how large a segment becomes.
        compression: a codec's name, or None.
        repeated: which value of a repeated header a message gets; None: a repeated header is an error.
        new_topics: the bounds of bodies, and the sizes of segments, of topics that do not exist yet.
        run: tells the runs of one name apart: the commit's record says which one's it is.
    """

    store: str
    topic: str | None
    name: str | None
    segment_bytes: int
    compression: str | None
    repeated: Literal["first", "last"] | None = None
    new_topics: StoreOptions = field(default_factory=StoreOptions)
    run: str | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read. Case is ignored in their names, as in Spark.

    Raises:
        InvalidOptionError: one is unknown, or has a value that it cannot have.
    """
    options = _known(given, _NAMES, "reads", _WRITE_NAMES)
    return ReadOptions(
        stores=_stores(options),
        topics=_topics(options),
        starting=bound_of(options, "startingOffsets", "earliest"),
        ending=bound_of(options, "endingOffsets", "latest"),
        starting_ns=time_of(options, "startingTimestamp"),
        ending_ns=time_of(options, "endingTimestamp"),
        tags=frozenset(labels_of(options, "tags")) if "tags" in options else None,
        columns=columns_of(list_of(options["columns"]) if "columns" in options else None),
        split_bytes=size_of(options, "splitBytes", 0) or None,
        verify=choice_of(options, "verify", {"batch": True, "none": False}, default=True),
        strict=choice_of(options, "failOnDataLoss", {"true": True, "false": False}, default=True),
        most_records=_records(options, "maxRecordsPerTrigger", "maxOffsetsPerTrigger"),
        most_bytes=size_of(options, "maxBytesPerTrigger", 0) or None,
        hold=options.get("hold"),
        advance_hold=choice_of(options, "holdAdvance", {"batch": True, "manual": False}, default=True),
        min_partitions=count_of(options, "minPartitions", of="tasks"),
        pattern=_pattern(options),
        least_records=_records(options, "minRecordsPerTrigger", "minOffsetsPerTrigger"),
        longest_delay=delay_of(options, "maxTriggerDelay", _TRIGGER_DELAY),
    )


def batch_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a single read.

    Raises:
        InvalidOptionError: one is unknown, or has a value that it cannot have, or makes no sense without a stream.
    """
    options = read_options(given)
    said = {name.lower() for name in given}
    for name in _STREAM_NAMES:
        if name.lower() in said:
            raise InvalidOptionError(f"{name!r} is for streams: a single read takes all there is, once")
    _check_order("startingOffsets", options.starting, "endingOffsets", options.ending)
    _check_order("startingTimestamp", options.starting_ns, "endingTimestamp", options.ending_ns)
    return options


def _check_order(start: str, begin: Bound | Moment | None, stop: str, end: Bound | Moment | None) -> None:
    """Make sure that a range does not end before it begins: with its ends exchanged, it would silently be empty.

    Raises:
        InvalidOptionError: it does, as far as its ends are numbers.
    """
    for topic in {*(begin if isinstance(begin, dict) else ()), *(end if isinstance(end, dict) else ())} or {""}:
        first = begin.get(topic) if isinstance(begin, dict) else begin
        last = end.get(topic) if isinstance(end, dict) else end
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise InvalidOptionError(f"{stop} lies before {start}{f' of topic {topic!r}' if topic else ''}")


def stream_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a stream.

    Raises:
        InvalidOptionError: one is unknown, or has a value that it cannot have, or makes no sense for a stream.
    """
    options = read_options(given)
    if options.ending != "latest" or options.ending_ns is not None:
        raise InvalidOptionError("a stream has no end: endingOffsets and endingTimestamp are for batch reads")
    if options.most_records is not None and options.most_bytes is not None:
        raise InvalidOptionError("'maxRecordsPerTrigger' and 'maxBytesPerTrigger' exclude each other")
    if options.least_records is not None and options.least_records > (options.most_records or options.least_records):
        raise InvalidOptionError("'minRecordsPerTrigger' is more than 'maxRecordsPerTrigger'")
    if options.least_records is None and any(name.lower() == "maxtriggerdelay" for name in given):
        raise InvalidOptionError("'maxTriggerDelay' ends a wait: give the option 'minRecordsPerTrigger', too")
    if options.hold is None and not options.advance_hold:
        raise InvalidOptionError("'holdAdvance' says how a hold moves: give the option 'hold', too")
    if options.hold is not None and options.pattern is not None:
        raise InvalidOptionError(
            "a hold knows topics by patterns such as mail.*: give 'topics', not 'subscribePattern'"
        )
    if options.hold is not None and any(map(is_url, options.stores)):
        raise InvalidOptionError("a hold is kept in a store's directory; what is in object storage nobody deletes")
    return options


def write_options(given: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Return the options of a write.

    Raises:
        InvalidOptionError: one is unknown or has an invalid value, or a stream has no name.
        InvalidNameError: no topic can have that name.
        MissingExtraError: a codec is not installed.
    """
    options = _known(given, _WRITE_NAMES, "writes", _NAMES)
    if not options.get("path", "").strip():
        raise _no_path(
            "a store's directory, by save(…), start(…) or option('path', …): a table's name is none", options
        )
    store = _path(options["path"])
    if is_url(store):
        raise InvalidOptionError(
            f"{store!r} is in object storage, where a store is only read: write to a directory that the "
            f"workers see, and bring its segments there with aiodq spark archive --segments"
        )
    if ("," in store or has_magic(store)) and not os.path.isdir(store):
        raise InvalidOptionError(
            f"{store!r} names several stores, or a pattern, as for a read; a write goes to one store, and to "
            f"one of that very name where its directory is there"
        )
    if not stream and "txnAppId" in options:
        raise InvalidOptionError("'txnAppId' is for streams; a single write that may be repeated has a 'txnId'")
    if stream and (single := next((name for name in ("txnId", "txnRun") if name in options), None)):
        raise InvalidOptionError(f"{single!r} is for single writes; a stream has a 'txnAppId'")
    topic = options.get("topic")
    if topic is not None:
        check_topic(topic)
    compression = choice_of(options, "compression", _CODECS, default=None)
    codec_number(compression)
    segment_bytes = size_of(options, "segmentBytes", _SEGMENT_BYTES)
    most = size_of(options, "maxMessageBytes", StoreOptions().max_message_bytes, most=LARGEST_BODY)
    return WriteOptions(
        # Files are synced by their names, and no link is followed for that.
        store=os.path.realpath(store) if os.path.islink(store.rstrip("/")) else store,
        topic=topic,
        name=_stream_name(options) if stream else _name(options, "txnId"),
        segment_bytes=segment_bytes,
        compression=compression,
        repeated=choice_of(options, "repeatedHeaders", _REPEATED, default=None),
        new_topics=StoreOptions(segment_bytes=segment_bytes, max_message_bytes=most),
        run=_name(options, "txnRun"),
    )


def check_topic(topic: str) -> None:
    """Make sure that Spark can write into a topic of this name.

    Raises:
        InvalidNameError: no topic can have that name.
        InvalidOptionError: it is ephemeral.
    """
    if is_ephemeral(check_topic_name(topic)):
        raise InvalidOptionError(f"the topic {topic!r} lives in its owner's memory; only its owner can put into it")


def _stream_name(options: Mapping[str, str]) -> str:
    """Return an id that tells a stream from all others, and from itself with a new checkpoint.

    Raises:
        InvalidOptionError: the checkpoint has none, or it cannot be read.
    """
    if "txnAppId" in options:
        return _name(options, "txnAppId") or ""
    checkpoint = options.get("checkpointLocation")
    if checkpoint is None:
        raise InvalidOptionError(
            "a stream is told by its checkpoint: give the option 'checkpointLocation', or a name as 'txnAppId'"
        )
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    try:
        with open(os.path.join(path, "metadata"), encoding="utf-8") as file:
            return str(json.load(file)["id"])
    except (OSError, ValueError, KeyError, TypeError) as cause:
        # The path is not enough: with a new checkpoint at the same path, a stream numbers its batches from 0 again.
        raise InvalidOptionError(
            f"the checkpoint {checkpoint!r} cannot be read from here ({cause}): give the stream a name as 'txnAppId', "
            f"and another one whenever it is started again"
        ) from cause


def _name(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not value.strip():
        raise InvalidOptionError(f"{name} is empty: a name by which the write is known again")
    if value is not None and len(quote(value, safe="")) > _LONGEST_NAME:
        raise InvalidOptionError(
            f"{name} is too long: it has at most {_LONGEST_NAME} characters, of which each but ASCII's letters, digits "
            f"and - . _ ~ counts as 3 or more, not {value!r:.80}"
        )
    return value


def _known(
    given: Mapping[str, str], names: tuple[str, ...], kind: Literal["reads", "writes"], others: tuple[str, ...]
) -> dict[str, str]:
    """Return options under their proper names.

    Args:
        given: the options.
        names: the known ones.
        kind: what they are options of, for the error.
        others: the known ones of the other kind, for the error.

    Raises:
        InvalidOptionError: there is no such option.
    """
    known = {name.lower(): name for name in names}
    unknown = sorted(name for name in given if name.lower() not in known)
    if any(name in _OF_TABLES or name.startswith("option.") for name in unknown):
        raise InvalidOptionError(
            f"Spark keeps no options of a table for a source written in Python: instead of CREATE TABLE, {_VIEW}"
        )
    if unknown:
        elsewhere = [name for name in others if name.lower() == unknown[0].lower()]
        if elsewhere:
            other = "writes" if kind == "reads" else "reads"
            raise InvalidOptionError(f"{elsewhere[0]!r} is an option of {other}; those of {kind}: {', '.join(names)}")
        close = get_close_matches(unknown[0].lower(), known, n=1)
        hint = _HINTS.get(unknown[0].lower(), known[close[0]] if close else None)
        meant = f" (is it {hint} that is meant?)" if hint else ""
        raise InvalidOptionError(f"unknown option {unknown[0]!r}{meant}; there are {', '.join(names)}")
    return {known[name.lower()]: value for name, value in given.items()}


def _stores(options: Mapping[str, str]) -> tuple[str, ...]:
    named = _said_to_load(options["paths"]) if "paths" in options else []
    named += _paths(options.get("path", ""))
    stores: list[str] = []
    for path in map(_path, named):
        found = _matching(path)
        if not found:
            raise InvalidOptionError(f"no store is found under path {path!r}")
        stores += found
    if not stores:
        raise _no_path("a store's directory, several, or a pattern", options)
    return _told_apart(stores)


def _matching(path: str) -> list[str]:
    """Return the paths that a pattern matches; the path itself if it is none, or a directory of that very name."""
    if not has_magic(path):
        return [path]
    if is_url(path):
        with os_errors(path):
            return find_urls(path)
    return [path] if os.path.isdir(path) else sorted(glob(path))


def _said_to_load(said: str) -> list[str]:
    """Return the paths of `load([…])`, which Spark passes on as JSON.

    Raises:
        InvalidOptionError: it is no such JSON: a user has set the option.
    """
    found = json_of("paths", said)
    if not isinstance(found, list) or not all(isinstance(path, str) for path in found):
        raise InvalidOptionError(f"'paths' is what Spark makes of load(['/a', '/b']), not {said!r:.200}: name a 'path'")
    return found


def _paths(said: str) -> list[str]:
    """Return the paths of a comma-separated list; or the whole text as one, if it names a directory, as in a write."""
    return [said] if said.strip() and os.path.isdir(_path(said)) else list_of(said)


def _path(said: str) -> str:
    if "\0" in said:
        raise InvalidOptionError(f"path has a character of code 0 in it, which no path can: {said!r}")
    return full_path(said)


def _no_path(meant: str, options: Mapping[str, str]) -> InvalidOptionError:
    table = "" if options else f"; a table of Spark's catalog hands none on: instead of CREATE TABLE, {_VIEW}"
    return InvalidOptionError(f"the option 'path' is missing: {meant}{table}")


def _told_apart(stores: list[str]) -> tuple[str, ...]:
    """Return the paths of stores in the form in which a stream's offsets name them, without duplicates."""
    spelled = tuple(store.rstrip("/") or "/" for store in stores)
    places = list(map(_real, spelled))
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InvalidOptionError(
                f"the store {spelled[number]!r} is named twice: its messages would come twice, too"
            )
    return spelled


def _real(store: str) -> str:
    try:
        return store if is_url(store) else os.path.realpath(store)
    except OSError:
        # A link that may not be followed: opening the store there reports it, with the path.
        return store


def _pattern(options: Mapping[str, str]) -> str | None:
    value = options.get("subscribePattern")
    if value is None:
        return None
    if not value:
        raise InvalidOptionError("subscribePattern is empty, which no topic matches: leave it out for all of them")
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as cause:
        raise InvalidOptionError(f"subscribePattern is a regular expression, not {value!r} ({cause})") from cause
    return value


def _topics(options: Mapping[str, str]) -> tuple[str, ...] | None:
    said = [name for name in ("topic", "topics", "subscribePattern") if name in options]
    if len(said) > 1:
        raise InvalidOptionError(f"{said[0]!r} and {said[1]!r} exclude each other")
    if "," in options.get("topic", ""):
        raise InvalidOptionError(f"'topic' is one name, not {options['topic']!r:.200}: several are 'topics'")
    if has_magic(options.get("topic", "")):
        raise InvalidOptionError(f"'topic' is one name, not {options['topic']!r:.200}: patterns are 'topics'")
    if "topic" in options:
        return (options["topic"],)
    return tuple(names_of(options, "topics")) if "topics" in options else None


def _records(options: Mapping[str, str], own: str, other: str) -> int | None:
    """Return the value of an option that is a number of messages, by its own name or by Kafka's."""
    if own in options and other in options:
        raise InvalidOptionError(f"{other!r} is another name of {own!r}: give one of them")
    return count_of(options, other if other in options else own)
