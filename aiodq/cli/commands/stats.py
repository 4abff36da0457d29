"""`aiodq stat`: what a store holds, also while its owner runs."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from aiodq.cli.arguments import Place
from aiodq.cli.exits import DONE, WRONG, CommandError
from aiodq.cli.output import read_or_not
from aiodq.cli.show import counted, figures_table, human_bytes, print_json, rate, stdout
from aiodq.opening import open_reader
from aiodq.stats import Latency
from aiodq.storage.offline.store_reader import ChannelSummary, StoreSummary
from aiodq.storage.offline.summaries import TopicSummary

__all__ = ["stat"]

_INTERVAL: Final = 1.0


def stat(store: Place, /, *, json: bool = False, watch: bool = False) -> int:
    """Show what a store holds, by topic and channel.

    The store may be open in another process. The numbers of messages in flight, timed out or given up come from that
    process, about once a second; without one, "-" is shown. Columns are named as in --json and in the stats of a
    program. The exit code is 1 if a topic may not be read; the others are shown.

    Args:
        store: the store's directory.
        json: print it as JSON.
        watch: show it again every second, with rates.
    """
    if json and watch:
        raise CommandError("--json and --watch exclude each other")
    reader = open_reader(store)
    summary = reader.stats()
    if watch:
        _watch(summary, reader.stats)
    with read_or_not():
        if json:
            print_json(summary)
        else:
            stdout().print(tables(summary))
    return WRONG if summary.refused else DONE


def _watch(summary: StoreSummary, look: Callable[[], StoreSummary]) -> None:
    """Show the figures until interrupted: updated in place on a terminal, otherwise one below the other."""
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
    """Return a store's figures as tables that fit into 80 columns.

    Args:
        summary: the figures.
        before: older ones, to compute rates; None for no rates.
        seconds: the time between them.
    """
    refused = [Text(f"topic {name!r} is refused: {why}", overflow="fold") for name, why in summary.refused.items()]
    if not summary.topics and refused:
        return Group(*refused)
    if not summary.topics:
        return Text(f"{summary.path}: no topic yet", overflow="fold")
    parts: list[RenderableType] = [Text(summary.path, overflow="fold"), "", _topics(summary, before, seconds), ""]
    if any(topic.channels for topic in summary.topics.values()):
        parts += [_waiting(summary), "", _settled(summary, before, seconds), ""]
    if any(channel.put_to_deliver or channel.put_to_ack for _, _, channel in _channels(summary)):
        parts += [_latencies(summary), ""]
    if paused := [name for name, _, channel in _channels(summary) if channel.paused]:
        parts.append(Text(f"paused: {', '.join(paused)}", overflow="fold"))
    parts += [
        Text(f"damage: {damage.path} at byte {damage.position}: {damage.reason}", overflow="fold")
        for topic in summary.topics.values()
        for damage in topic.damages
    ]
    parts += [
        Text(f"lost: {counted(topic.lost, 'message')} of topic {topic.name!r}, until `aiodq repair`", overflow="fold")
        for topic in summary.topics.values()
        if topic.lost
    ]
    return Group(*parts, *refused)


def _topics(summary: StoreSummary, before: StoreSummary | None, seconds: float) -> Table:
    """Show the topics, with rates, or else with what is not on the device yet, if there is anything."""
    behind = before is None and any(topic.durable_offset != topic.end_offset for topic in summary.topics.values())
    names = ["topic", "messages", "begin offset", "end offset", *["durable offset"] * behind, "segments", "disk bytes"]
    names += ["put/s"] * (before is not None)
    rows = []
    for name, topic in summary.topics.items():
        offsets = [topic.begin_offset, topic.end_offset, *[topic.durable_offset] * behind]
        row = [name, *map(_number, [topic.messages, *offsets, topic.segments]), human_bytes(topic.disk_bytes)]
        if before is not None:
            old = before.topics.get(name)
            row.append(_speed(topic.end_offset - (topic.begin_offset if old is None else old.end_offset), seconds))
        rows.append(row)
    return figures_table(names, rows)


def _channels(summary: StoreSummary) -> Iterator[tuple[str, TopicSummary, ChannelSummary]]:
    for topic in summary.topics.values():
        for channel in topic.channels.values():
            yield f"{topic.name}/{channel.name}", topic, channel


def _waiting(summary: StoreSummary) -> Table:
    """Show the unsettled messages of channels."""
    rows = []
    for name, _, channel in _channels(summary):
        counts = channel.depth, channel.ready, channel.in_flight, channel.deferred, channel.returned
        rows.append([name, *map(_number, counts), _age(channel.oldest_ns), human_bytes(channel.backlog_bytes)])
    names = ["depth", "ready", "in flight", "deferred", "returned", "oldest", "backlog bytes"]
    return figures_table(["topic/channel", *names], rows)


def _settled(summary: StoreSummary, before: StoreSummary | None, seconds: float) -> Table:
    """Show the settled messages of channels, and the segments that they hold back."""
    rows = []
    for name, topic, channel in _channels(summary):
        held = sum(channel.name in segment.by for segment in topic.held)
        row = [name, *map(_number, (channel.floor, channel.timed_out, channel.dead, channel.dropped, held))]
        if before is not None:
            gone = _gone(summary, topic.name, channel.name) - _gone(before, topic.name, channel.name)
            row.append(_speed(gone, seconds))
        rows.append(row)
    names = ["topic/channel", "floor", "timed out", "dead", "dropped", "held segments"]
    return figures_table([*names, *["acked/s"] * (before is not None)], rows)


def _latencies(summary: StoreSummary) -> Table:
    """Show the latencies of about the last minute, for channels that had messages."""
    rows = []
    for name, _, channel in _channels(summary):
        if channel.put_to_deliver or channel.put_to_ack:
            rows.append([name, *_percentiles(channel.put_to_deliver), *_percentiles(channel.put_to_ack)])
    names = [f"{what} {share}" for what in ("put to deliver", "put to ack") for share in ("p50", "p99", "max")]
    return figures_table(["topic/channel", *names], rows)


def _percentiles(latency: Latency | None) -> list[str]:
    return ["-"] * 3 if latency is None else [_span(value) for value in (latency.p50, latency.p99, latency.max)]


def _span(seconds: float) -> str:
    """Return a duration in three digits and a unit."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _age(put_ns: int | None) -> str:
    """Return how long ago that was, as text."""
    if put_ns is None:
        return "-"
    seconds = max(time.time_ns() - put_ns, 0) // 1_000_000_000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _gone(summary: StoreSummary, topic: str, channel: str) -> int:
    """Return how many messages a channel has settled, but for a constant."""
    found = summary.topics.get(topic)
    if found is None or channel not in found.channels:
        return 0
    return found.end_offset - found.channels[channel].depth


def _speed(amount: int, seconds: float) -> str:
    return f"{rate(max(amount, 0), seconds):,.0f}"
