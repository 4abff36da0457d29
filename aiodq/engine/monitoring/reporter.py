"""The reporter: the only place from which a store writes logs and events.

Nothing here is on the path of a put, a get or an ack. Events that may come by the thousand (timeouts, dead messages,
drops) are logged at once the first time; repetitions are counted, and one line reports their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiodq.engine.monitoring.events import Event, Listeners
from aiodq.engine.monitoring.log import Log
from aiodq.engine.monitoring.one_line import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiodq.engine.opened_files import OpenedStore
    from aiodq.storage.io.quarantine import Damage

__all__ = ["DELIVERY", "STORE", "TOPIC", "Reporter"]

STORE: Final = Log("aiodq.store")
TOPIC: Final = Log("aiodq.topic")
DELIVERY: Final = Log("aiodq.delivery")

_QUIET: Final = 5
"""Ticks, of about a second each, for which repetitions are only counted."""


@dataclass(slots=True)
class _More:
    """The repetitions counted since the last log line, and the ticks since then."""

    count: int = 0
    ticks: int = 0


class Reporter:
    """The reporter of one store; all methods are called on its loop.

    Attributes:
        listeners: the listeners of its events.
    """

    def __init__(self, path: str) -> None:
        """Report for the store at `path`."""
        self.listeners: Listeners = Listeners()
        self._path = path
        self._more: dict[tuple[Log, str, str | None, str | None], _More] = {}

    # --- logs and events

    def note(
        self, logger: Log, text: str, topic: str | None = None, channel: str | None = None,
        **extra: object,
    ) -> None:  # fmt: skip
        """Log one line at INFO, of something done on request."""
        logger.info("%s", one_line(text), extra=self._extra(topic, channel, extra))

    def warn(
        self, logger: Log, text: str, topic: str | None = None, channel: str | None = None,
        **extra: object,
    ) -> None:  # fmt: skip
        """Log one line at WARNING."""
        logger.warning("%s", one_line(text), extra=self._extra(topic, channel, extra))

    def tell(self, event: Event) -> None:
        """Pass an event to the listeners; it is not logged."""
        if self.listeners:
            self.listeners.add(event)

    def _extra(self, topic: str | None, channel: str | None, more: Mapping[str, object]) -> dict[str, object]:
        return {"store": self._path, "topic": topic, "channel": channel, **more}

    def _first(self, logger: Log, what: str, topic: str | None, channel: str | None, count: int = 1) -> bool:
        """Return whether this is the first of its kind, to be logged; repetitions are counted for `tick`."""
        more = self._more.get((logger, what, topic, channel))
        if more is None:
            self._more[logger, what, topic, channel] = _More()
            return True
        more.count += count
        return False

    def place(self, topic: str | None, channel: str | None) -> str:
        """Return the name of a topic, channel or store in texts."""
        if topic is None:
            return self._path
        return f"topic {topic!r}" if channel is None else f"channel {channel!r} of topic {topic!r}"

    def tick(self) -> None:
        """Log how many repetitions were counted; called about once a second."""
        for (logger, what, topic, channel), more in list(self._more.items()):
            more.ticks += 1
            if more.ticks < _QUIET:
                continue
            if not more.count:
                del self._more[logger, what, topic, channel]
                continue
            self._say_more(logger, what, topic, channel, more.count)
            more.count = more.ticks = 0

    def _say_more(self, logger: Log, what: str, topic: str | None, channel: str | None, count: int) -> None:
        self.warn(logger, f"{self.place(topic, channel)}: {count:,} more {what}", topic, channel, count=count)

    def end(self) -> None:
        """Log the counted repetitions, as the store is closed."""
        for (logger, what, topic, channel), more in self._more.items():
            if more.count:
                self._say_more(logger, what, topic, channel, more.count)
        self._more.clear()
        self.note(STORE, f"closed {self._path}")

    # --- the store

    def opened(self, seconds: float, opened: OpenedStore) -> None:
        """Report that the store is open: damages, in its own files too, what was recovered, and bad topics."""
        topics, damages = opened.topics, opened.damages
        for damage in damages:
            self.store_damaged(damage)
        for name, topic in topics.items():
            for damage in topic.log.damages:
                self.damaged(name, damage)
            for journal, _ in topic.channels.values():
                for damage in journal.damages:
                    self.damaged(name, damage)
            if topic.log.cut_bytes:
                self.recovered(name, topic.log.cut_bytes)
        for name, error in (*opened.unusable.items(), *opened.owing.items()):
            self.warn(STORE, f"topic {name!r} cannot be used, and what it is owed is kept: {error}", name)
        found = {
            "topic": len(topics),
            "channel": sum(len(topic.channels) for topic in topics.values()),
            "message": sum(topic.log.end - topic.log.begin for topic in topics.values()),
        }
        wrong = len(damages) + sum(len(topic.log.damages) for topic in topics.values())
        wrong += sum(len(journal.damages) for topic in topics.values() for journal, _ in topic.channels.values())
        mended = {
            "recovered byte": sum(topic.log.cut_bytes for topic in topics.values()),
            "damage": wrong,
        }
        counts = [*found.items(), *(item for item in mended.items() if item[1])]
        text = f"opened {self._path} in {seconds:.3f} s: {', '.join(_counted(count, what) for what, count in counts)}"
        extra = {f"{what.replace(' ', '_')}s": count for what, count in (found | mended).items()}
        self.note(STORE, text, None, None, seconds=seconds, **extra)
        self.listeners.opened()

    def store_damaged(self, damage: Damage) -> None:
        """Report damage, as `damaged` does, to a file that belongs to no topic."""
        text = f"{damage.path} at byte {damage.position}: {damage.reason}"
        self.warn(STORE, f"the store is damaged: {text}", path=damage.path)
        self.tell(Event("damage", text=text))

    def failed(self, error: Exception) -> None:
        """Report that the store has stopped."""
        cause = error.__cause__ or error
        text = one_line(f"{self._path} has failed: {error}")
        STORE.error("%s", text, exc_info=cause, extra=self._extra(None, None, {}))
        self.tell(Event("failed", text=str(error)))

    def lagging(self, seconds: float) -> None:
        """Report that the event loop was late for a timer: something blocks it."""
        if self._first(STORE, "times the event loop was held up", None, None):
            text = f"the event loop was held up for {seconds:.1f} s by something that ran without awaiting anything"
            self.warn(STORE, text, seconds=seconds)

    def slow_sync(self, topic: str | None, seconds: float, *, under_way: bool) -> None:
        """Report a slow sync. A slow disk affects all topics alike; one of them is named."""
        if self._first(STORE, "slow syncs", None, None):
            took = f"{'is under way for' if under_way else 'took'} {seconds:.1f} s"
            self.warn(STORE, f"{self.place(topic, None)}: a sync {took}; the disk is slow", topic, seconds=seconds)

    def disk_full(self, topic: str, error: Exception) -> None:
        """Report a write refused for lack of space, the first since one succeeded."""
        self.warn(TOPIC, f"topic {topic!r}: the disk is full: {error}", topic)

    def displaced(self, why: str) -> None:
        """Report that the store's path does not lead to its directory any more and why, or that it does again."""
        if why:
            self.alarm(None, None, f"the path does not lead to the open store any more: {why}")
        else:
            self.cleared(None, None, "the path leads to the open store again")

    def alarm(self, topic: str | None, channel: str | None, text: str) -> None:
        """Report that a watched value has reached its threshold."""
        self.warn(STORE, f"{self.place(topic, channel)}: {text}", topic, channel)
        self.tell(Event("alarm", topic, channel, text=text))

    def cleared(self, topic: str | None, channel: str | None, text: str) -> None:
        """Report that the value is well away from its threshold again."""
        self.note(STORE, f"{self.place(topic, channel)}: cleared: {text}", topic, channel)
        self.tell(Event("cleared", topic, channel, text=text))

    # --- topics

    def damaged(self, topic: str, damage: Damage) -> None:
        """Report stored bytes that cannot be read, and were quarantined."""
        offset = damage.first if damage.stop > damage.first else None
        text = f"{damage.path} at byte {damage.position}: {damage.reason}"
        self.warn(TOPIC, f"topic {topic!r} is damaged: {text}", topic, offset=offset, path=damage.path)
        self.tell(Event("damage", topic, None, offset, text))

    def recovered(self, topic: str, cut_bytes: int) -> None:
        """Report an unfinished write that was truncated at opening."""
        text = f"{cut_bytes:,} bytes of an unfinished write were cut off; nothing of it was durable"
        self.note(TOPIC, f"topic {topic!r}: {text}", topic, bytes=cut_bytes)
        self.tell(Event("recovered", topic, text=text))

    def topic_deleted(self, topic: str) -> None:
        """Report that a topic was deleted."""
        self.note(TOPIC, f"topic {topic!r} was deleted", topic)

    def channel_made(self, topic: str, channel: str, floor: int) -> None:
        """Report that a channel was created."""
        self.note(TOPIC, f"topic {topic!r}: channel {channel!r} was made; it begins at {floor:,}", topic, channel)

    def channel_deleted(self, topic: str, channel: str) -> None:
        """Report that a channel was deleted."""
        self.note(TOPIC, f"topic {topic!r}: channel {channel!r} was deleted", topic, channel)

    # --- deliveries

    def timed_out(self, topic: str, channel: str, offsets: Sequence[int]) -> None:
        """Report messages whose time in flight was over, and that are ready again."""
        number, first = len(offsets), offsets[0]
        if self._first(DELIVERY, "timed out", topic, channel, number):
            text = f"{self.place(topic, channel)}: {number:,} timed out, the first is message {first}"
            self.warn(DELIVERY, text, topic, channel, offset=first, count=number)
        if self.listeners:
            for offset in offsets:
                self.listeners.add(Event("timeout", topic, channel, offset, "in flight for too long; ready again"))

    def dead(self, topic: str, channel: str, offset: int, attempts: int, reason: str, *, target: str | None) -> None:
        """Report a message that was given up: it is in the dead-letter topic `target`, or dropped for good if None."""
        new = self._first(DELIVERY, "dead", topic, channel)
        if not new and not self.listeners:
            return
        fate = "dropped for good, as the channel has no dead_letter" if target is None else f"put into {target!r}"
        if new:
            text = f"{self.place(topic, channel)}: message {offset} is dead ({reason}); {fate}"
            self.warn(DELIVERY, text, topic, channel, offset=offset, attempt=attempts, count=1, dead_letter=target)
        self.tell(Event("dead", topic, channel, offset, f"{reason}; {fate}"))

    def dropped(self, topic: str, channel: str | None, count: int, why: str, offset: int | None = None) -> None:
        """Report messages dropped without an ack; the first offset may be known."""
        new = self._first(TOPIC, "dropped", topic, channel, count)
        if new:
            text = f"{self.place(topic, channel)}: {_counted(count, 'message')} dropped: {why}"
            self.warn(TOPIC, text, topic, channel, offset=offset, count=count)
        if self.listeners:
            self.listeners.add(Event("dropped", topic, channel, offset, f"{_counted(count, 'message')}: {why}"))

    def lost(self, topic: str, channel: str, count: int, offset: int) -> None:
        """Report that a channel has reached messages that cannot be read: their bytes are damaged, or missing."""
        text = (
            f"{_counted(count, 'message')} cannot be read, the first is {offset}: "
            "the file is damaged or missing; see aiodq verify"
        )
        if self._first(TOPIC, "lost to damage", topic, channel, count):
            self.warn(TOPIC, f"{self.place(topic, channel)}: {text}", topic, channel, offset=offset, count=count)
        self.tell(Event("damage", topic, channel, offset, text))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
