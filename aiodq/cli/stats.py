"""`aiodq stat`: what a store holds, beside whoever owns it."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from aiodq.cli.exits import DONE, CommandError
from aiodq.cli.show import human_bytes, print_json, rate, stdout
from aiodq.storage.reader import ChannelSummary, StoreSummary, TopicSummary
from aiodq.store import open_reader

__all__ = ["stat"]

_INTERVAL: Final = 1.0
_COUNTS: Final = ("ready", "in flight", "deferred", "came back", "timed out", "dead")


def stat(store: str, /, *, json: bool = False, watch: bool = False) -> int:
    """Show what a store holds, by topic and channel.

    The store may be open in another process meanwhile. What is in flight, has timed out or was given up since it was
    opened, that process shows about once a second; without one there is "-".

    Args:
        store: the store's directory.
        json: print it as JSON.
        watch: show it again every second, with what has come and gone.
    """
    if json and watch:
        raise CommandError("--json and --watch exclude each other")
    reader = open_reader(store)
    summary = reader.stats()
    if json:
        print_json(summary)
    elif watch:
        _watch(summary, reader.stats)
    else:
        stdout().print(tables(summary))
    return DONE


def _watch(summary: StoreSummary, look: Callable[[], StoreSummary]) -> None:
    """Show figures until interrupted: in place on a terminal, else one below the other."""
    console = stdout()
    if not console.is_terminal:
        for shown in _looks(summary, look):
            console.print(shown)
            sys.stdout.flush()
    with Live(console=console, auto_refresh=False) as live:
        for shown in _looks(summary, look):
            live.update(shown, refresh=True)


def _looks(summary: StoreSummary, look: Callable[[], StoreSummary]) -> Iterator[RenderableType]:
    yield tables(summary)
    seen = time.monotonic()
    while True:
        time.sleep(_INTERVAL)
        before, summary = summary, look()
        seconds, seen = time.monotonic() - seen, time.monotonic()
        yield tables(summary, before, seconds)


def tables(summary: StoreSummary, before: StoreSummary | None = None, seconds: float = 0.0) -> RenderableType:
    """Return a store's figures as tables.

    Args:
        summary: the figures.
        before: older ones, to tell rates by; None for no rates.
        seconds: the time between them.
    """
    if not summary.topics:
        return f"{summary.path}: no topic yet"
    parts: list[RenderableType] = [_topics(summary, before, seconds)]
    if any(topic.channels for topic in summary.topics.values()):
        parts.append(_channels(summary, before, seconds))
    parts += [
        f"damage: {damage.path} at byte {damage.position}: {damage.reason}"
        for topic in summary.topics.values()
        for damage in topic.damages
    ]
    return Group(*parts)


def _topics(summary: StoreSummary, before: StoreSummary | None, seconds: float) -> Table:
    table = Table("topic", title=summary.path, title_justify="left")
    for name in ("messages", "first offset", "end offset", "durable to", "segments", "size", "damages"):
        table.add_column(name, justify="right")
    if before is not None:
        table.add_column("put/s", justify="right")
    for name, topic in summary.topics.items():
        row = [name, *(f"{number:,}" for number in _figures(topic)), human_bytes(topic.bytes), str(len(topic.damages))]
        if before is not None:
            old = before.topics.get(name)
            row.append(_speed(topic.end_offset - (topic.begin_offset if old is None else old.end_offset), seconds))
        table.add_row(*row)
    return table


def _figures(topic: TopicSummary) -> tuple[int, ...]:
    return topic.records, topic.begin_offset, topic.end_offset, topic.durable_offset, topic.segments


def _channels(summary: StoreSummary, before: StoreSummary | None, seconds: float) -> Table:
    table = Table("topic", "channel")
    for name in (*_COUNTS, "oldest", "all acked below", "holds segments"):
        table.add_column(name, justify="right")
    if before is not None:
        table.add_column("acked/s", justify="right")
    for name, topic in summary.topics.items():
        for channel in topic.channels.values():
            held = [segment for segment in topic.held if channel.name in segment.by]
            row = [name, channel.name, *map(_number, _counts(channel)), _age(channel.oldest_ns)]
            row += [f"{channel.floor:,}", f"{len(held):,}"]
            if before is not None:
                row.append(
                    _speed(_settled(summary, name, channel.name) - _settled(before, name, channel.name), seconds)
                )
            table.add_row(*row)
    return table


def _counts(channel: ChannelSummary) -> tuple[int | None, ...]:
    """Return what stands under `_COUNTS`."""
    return (
        channel.ready,
        channel.in_flight,
        channel.deferred,
        channel.redelivered,
        channel.timed_out,
        channel.dead,
    )


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _age(put_ns: int | None) -> str:
    """Return how long ago that was, in words."""
    if put_ns is None:
        return "-"
    seconds = max(time.time_ns() - put_ns, 0) // 1_000_000_000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _settled(summary: StoreSummary, topic: str, channel: str) -> int:
    """Return how many messages a channel has settled, but for a constant."""
    found = summary.topics.get(topic)
    if found is None or channel not in found.channels:
        return 0
    return found.end_offset - found.channels[channel].depth


def _speed(amount: int, seconds: float) -> str:
    return f"{rate(max(amount, 0), seconds):,.0f}"
