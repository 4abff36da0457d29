"""`aiodq spark …`: ready-made jobs over stores, in a Spark session of their own."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import App, Parameter, validators
from rich.table import Table

from aiodq.cli.arguments import Place, whole
from aiodq.cli.exits import DONE, WRONG, CommandError, complain
from aiodq.cli.output import printable
from aiodq.cli.show import counted, human_bytes, print_json, rate, stdout
from aiodq.cli.spark_session import pipelines, session
from aiodq.storage.io.lock import LOCK_NAME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["spark"]

spark: App = App(name="spark", help="Read, write and process stores with Spark (extra `spark`).")

_HERE: Final = "local[*]"
Master = Annotated[str, Parameter(help="Spark master; local[*] uses all cores of this machine")]
Conf = Annotated[list[str] | None, Parameter(help="a Spark setting, KEY=VALUE; repeatable", negative=())]
Verbose = Annotated[bool, Parameter(help="show the standard error of Java, Spark and its workers", negative=())]


def _zoned(_: object, moment: datetime | None) -> None:
    """Refuse a time without a zone, before half a minute is spent on starting Java.

    Raises:
        ValueError: it has none.
    """
    if moment is not None and moment.tzinfo is None:
        raise ValueError(f"It needs a time zone, for example {moment.isoformat()}+00:00.")


Offset = Annotated[int | None, Parameter(converter=whole)]

Moment = Annotated[datetime | None, Parameter(validator=_zoned)]
"""A time, with its zone."""

Names = Annotated[list[str] | None, Parameter(negative=())]

Topics = Annotated[list[str] | None, Parameter(name="--topic", help="a topic name or pattern; repeatable", negative=())]


def _check(stores: str, topics: list[str] | None = None, *, coming: bool = False, one_for: str | None = None) -> None:
    """Make sure that what is to be read is there, before half a minute is spent on starting Java.

    Raises:
        StoreNotFoundError: a store or a topic is not.
        InvalidOptionError: there are several, and the job is for one.
    """
    pipelines().check_stores(stores, topics, coming=coming)
    if one_for is not None:
        from aiodq.spark.pipelines.places import one_store  # noqa: PLC0415 - it is there now

        one_store(one_for, stores)


@spark.command
def archive(  # noqa: PLR0913 - what there is to say
    store: Place,
    target: str,
    /,
    *,
    topic: Topics = None,
    once: bool = False,
    every: Annotated[float | None, Parameter(validator=validators.Number(gt=0))] = None,
    checkpoint: str | None = None,
    hold: str | None = None,
    lossy: bool = False,
    segments: Annotated[bool, Parameter(negative=())] = False,
    master: Annotated[str | None, Parameter(help="Spark master; default: local[*], all cores of this machine")] = None,
    conf: Conf = None,
    verbose: Verbose = False,
) -> int:
    """Write topics to Parquet by topic and date, each message exactly once, until interrupted.

    Args:
        store: the store's directory. It may be open in another process.
        target: a directory for the files.
        topic: the topics; default: all.
        once: stop when everything there is archived.
        every: seconds between micro-batches; default: 10.
        checkpoint: the checkpoint's directory; default: TARGET/_checkpoint.
        hold: the name of the hold that keeps messages from retention until they are archived.
        lossy: skip damaged or deleted messages instead of failing; with --segments only deleted ones.
        segments: copy sealed segments to TARGET, an object storage URL, once and without Spark.
        master: the Spark master.
        conf: Spark settings.
        verbose: show the output of Java, Spark and its workers.
    """
    if segments:
        why = "--segments ships once, without Spark and without a checkpoint"
        _refuse(why, every=every, checkpoint=checkpoint, master=master, conf=conf)
    if once:
        _refuse("--once ends when all is archived, however many batches that takes", every=every)
    _check(store, topic, coming=True, one_for="archive")
    if segments:
        return _ship(store, target, topic, hold, lossy=lossy)
    from aiodq.spark.pipelines.archive import check_target  # noqa: PLC0415 - it is there now

    check_target(target, checkpoint)
    wanted: dict[str, object] = {"topics": topic, "once": once, "checkpoint": checkpoint, "hold": hold, "lossy": lossy}
    if every is not None:
        wanted["every"] = every
    with session(master or _HERE, conf, "archive", verbose=verbose) as (opened, tell):
        done = pipelines().archive(opened, store, target, progress=tell, **wanted)
    amount = f"{counted(done.rows, 'message')} to {done.target}"
    speed = f"{rate(done.rows, done.seconds):,.0f} a second"
    lost = f", left out: {counted(done.lost, 'message')} that are gone or damaged" if done.lost else ""
    stdout().print(f"archived {amount}: {done.seconds:.1f} s, {speed}, batches: {done.batches}{lost}")
    return DONE


def _refuse(why: str, **given: object) -> None:
    """Refuse options that another one makes meaningless.

    Raises:
        CommandError: one of them was given.
    """
    said = [f"--{name}" for name, value in given.items() if value is not None]
    if said:
        raise CommandError(f"{why}: it takes no {' and no '.join(said)}")


def _ship(store: str, target: str, topics: list[str] | None, hold: str | None, *, lossy: bool) -> int:
    done = pipelines().ship(store, target, topics=topics, hold=hold, lossy=lossy)
    amount = f"{counted(done.segments, 'segment')}, {counted(done.rows, 'message')}, {human_bytes(done.bytes)}"
    lost = f", left out: {counted(done.lost, 'message')} that were deleted before" if done.lost else ""
    stdout().print(f"shipped {amount} to {done.target}: {done.seconds:.1f} s{lost}")
    return DONE


@spark.command
def replay(  # noqa: PLR0913 - likewise
    source: Place,
    store: Place,
    /,
    *,
    into: str | None = None,
    topic: Names = None,
    tag: Names = None,
    since: Moment = None,
    until: Moment = None,
    first: Offset = None,
    stop: Offset = None,
    txn_id: str | None = None,
    max_message_bytes: Offset = None,
    master: Master = _HERE,
    conf: Conf = None,
    verbose: Verbose = False,
) -> int:
    """Put archived messages back into topics, in order, all or none.

    Args:
        source: a directory that `aiodq spark archive` wrote.
        store: the store's directory; it may be open in another process, whose consumers receive them.
        into: one topic for all messages; default: each message's own topic.
        topic: only messages of these topics; repeatable.
        tag: only messages with one of these tags; repeatable.
        since: only messages put at that time or later, such as 2026-01-31T12:00:00+00:00.
        until: only messages put before that time.
        first: only messages from that offset on.
        stop: only messages before that offset.
        txn_id: a name for this run; repeating it under the same name adds nothing.
        max_message_bytes: the largest body that a new topic takes; default: 16 MiB.
        master: the Spark master.
        conf: Spark settings.
        verbose: show the output of Java, Spark and its workers.
    """
    wanted = {"into": into, "topics": topic, "tags": tag, "since": since, "until": until, "first": first, "stop": stop}
    from aiodq.spark.objects import local_path  # noqa: PLC0415 - an extra that may be missing
    from aiodq.spark.pipelines.replay import check_places, check_range  # noqa: PLC0415 - likewise

    archived = local_path(source)
    if not os.path.isdir(archived):
        raise CommandError(f"there is no directory {source}: replay reads what aiodq spark archive wrote")
    if os.path.lexists(os.path.join(archived, LOCK_NAME)):
        raise CommandError(f"{source} is a store: replay reads what aiodq spark archive wrote")

    check_range(first, stop, since, until)
    check_places(source, store, into, txn_id, max_message_bytes)
    with session(master, conf, "replay", verbose=verbose) as (opened, _):
        how = {"txn_id": txn_id, "max_message_bytes": max_message_bytes}
        done = pipelines().replay(opened, source, store, **how, **wanted)
    if done.repeated:
        stdout().print(f"nothing to do: {txn_id!r} was committed before into {done.store}")
        return DONE
    stdout().print(f"replayed {counted(done.rows, 'message')} into {done.store}: {done.seconds:.1f} s")
    return DONE


@spark.command
def query(
    stores: Place,
    sql: str,
    /,
    *,
    output: Literal["table", "json"] | None = None,
    parquet: str | None = None,
    lossy: bool = False,
    master: Master = _HERE,
    conf: Conf = None,
    verbose: Verbose = False,
) -> int:
    """Query the live backlog with SQL: the view `messages` has all of it, and each topic has a view of its own name.

    Columns are topic, offset, timestamp, tag, key, headers, body, and text, which is the body as UTF-8. Spark
    ignores case in view names: topics whose names differ only in case are in `messages` only.

    Args:
        stores: a store's directory, several separated by commas, or a pattern.
        sql: the query.
        output: the format of the result; default: table. JSON shows NULL as null.
        parquet: write the result to this directory instead.
        lossy: skip messages that are damaged, or deleted during the read, instead of failing.
        master: the Spark master.
        conf: Spark settings.
        verbose: show the output of Java, Spark and its workers.
    """
    if parquet is not None:
        _refuse("--parquet writes the result and shows nothing", output=output)
    _check(stores)
    from aiodq.spark.objects import check_outside_stores  # noqa: PLC0415 - it is there now
    from aiodq.spark.pipelines.session import loss_option  # noqa: PLC0415 - likewise

    if parquet is not None:
        check_outside_stores(parquet)
    with session(master, conf, "query", verbose=verbose) as (opened, _):
        result: DataFrame = pipelines().query(opened, stores, sql, **loss_option(lossy=lossy))
        if parquet is not None:
            result.write.parquet(parquet)
            stdout().print(f"wrote {parquet}")
        elif output == "json":
            lines = result.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))")
            for line in lines.toLocalIterator():
                sys.stdout.write(f"{printable(line[0])}\n")
        else:
            _print_table(result)
    return DONE


def _print_table(result: DataFrame) -> None:
    table = Table(*result.columns)
    for row in result.toLocalIterator():
        table.add_row(*(_cell(value) for value in row))
    stdout().print(table)


def _cell(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(sep=" ")
    return "" if value is None else str(value)


@spark.command
def report(
    store: Place,
    path: Place,
    /,
    *,
    topic: Topics = None,
    lossy: bool = False,
    master: Master = _HERE,
    conf: Conf = None,
    verbose: Verbose = False,
) -> int:
    """Write an HTML report on a store, with charts: rates, sizes, tags, and the backlog of each channel.

    Args:
        store: the store's directory. It may be open in another process.
        path: the HTML file.
        topic: the topics; default: all.
        lossy: skip messages that are damaged, or deleted during the count, instead of failing.
        master: the Spark master.
        conf: Spark settings.
        verbose: show the output of Java, Spark and its workers.
    """
    _check(store, topic, one_for="report")
    from aiodq.spark.pipelines.report import check_file  # noqa: PLC0415 - it is there now

    check_file(path)
    with session(master, conf, "report", verbose=verbose) as (opened, _):
        done = pipelines().report(opened, store, path, topics=topic, lossy=lossy)
    about = f"{counted(done.rows, 'message')} of {counted(done.topics, 'topic')}"
    lost = f", left out: at most {counted(done.lost, 'message')} (as many offsets have none)" if done.lost else ""
    stdout().print(f"wrote {done.path}: {about}, {done.seconds:.1f} s{lost}")
    return DONE


@spark.command
def audit(
    stores: Place,
    /,
    *,
    topic: Topics = None,
    json: bool = False,
    master: Master = _HERE,
    conf: Conf = None,
    verbose: Verbose = False,
) -> int:
    """Check every byte of every segment, in parallel, and look for missing and repeated offsets.

    The exit code is 1 if something is damaged, missing or repeated.

    Args:
        stores: a store's directory, several separated by commas, or a pattern.
        topic: the topics; default: all.
        json: print the findings as JSON.
        master: the Spark master.
        conf: Spark settings.
        verbose: show the output of Java, Spark and its workers.
    """
    _check(stores, topic)
    with session(master, conf, "audit", verbose=verbose) as (opened, _):
        done = pipelines().audit(opened, stores, topics=topic)
    if json:
        print_json(done)
        return WRONG if done.findings else DONE
    for found in done.findings:
        lost = f" (messages {found.first} to {found.stop - 1})" if found.stop > found.first else ""
        complain(f"{found.path} at byte {found.position}: {found.reason}{lost}")
    amount = f"{counted(done.segments, 'segment')}, {counted(done.records, 'message')}, {human_bytes(done.bytes)}"
    verdict = counted(len(done.findings), "finding") if done.findings else "no damage"
    stdout().print(f"{amount}: {verdict}; {done.seconds:.1f} s, {human_bytes(rate(done.bytes, done.seconds))}/s")
    return WRONG if done.findings else DONE


@spark.command
def compact(  # noqa: PLR0913 - likewise
    store: Place,
    topic: str,
    into: str,
    /,
    *,
    target: str | None = None,
    drop_empty: bool = False,
    txn_id: str | None = None,
    lossy: bool = False,
    master: Master = _HERE,
    conf: Conf = None,
    verbose: Verbose = False,
) -> int:
    """Put the latest message of each key into another topic. Repeated without new messages, it adds nothing.

    Args:
        store: the store's directory. It may be open in another process.
        topic: the topic to read; it stays as it is.
        into: the topic to write.
        target: the store of INTO; default: the same store.
        drop_empty: leave out keys whose latest message is empty.
        txn_id: a name for this run; the same name again adds nothing, a new one adds the whole result.
        lossy: skip messages that are damaged, or deleted meanwhile, instead of failing; the latest readable message of
            a key then counts.
        master: the Spark master.
        conf: Spark settings.
        verbose: show the output of Java, Spark and its workers.
    """
    _check(store, [topic], one_for="compact")
    from aiodq.spark.pipelines.compact import check_compact  # noqa: PLC0415 - it is there now

    check_compact(store, topic, into, target, txn_id)
    with session(master, conf, "compact", verbose=verbose) as (opened, _):
        how = {"target": target, "drop_empty": drop_empty, "txn_id": txn_id, "lossy": lossy}
        done = pipelines().compact(opened, store, topic, into, **how)
    if done.repeated:
        stdout().print(
            f"nothing to do: {'the same' if txn_id is None else repr(txn_id)} was committed before into {into}"
        )
        return DONE
    if not done.kept:
        stdout().print(f"kept none of {counted(done.read, 'message')}: nothing was put into {done.into}")
        return DONE
    stdout().print(f"kept {counted(done.kept, 'message')} of {done.read:,} in {done.into}: {done.seconds:.1f} s")
    return DONE


@spark.command
def lag(checkpoint: Place, store: Place | None = None, /, *, json: bool = False) -> int:
    """Show how far a streaming query is behind, in messages by topic. No Java is started.

    Args:
        checkpoint: the query's checkpoint directory; the query may be running.
        store: the store that the query reads; not needed if it reads several, which the checkpoint names.
        json: print it as JSON.
    """
    found = pipelines().lag(checkpoint, store)
    if json:
        print_json(found)
        return DONE
    table = Table("store", "topic", "taken in", "end", "behind")
    for each in found:
        table.add_row(each.store, each.topic, f"{each.taken:,}", f"{each.end:,}", f"{each.lag:,}")
    stdout().print(table)
    return DONE
