"""Whether a topic's backlog has room: counted in memory, in constant time whatever the size of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from aiodq.engine.topic.retention.retaining_channels import retaining_channels
from aiodq.engine.topic.whole_topic import WholeTopic
from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.log.backlog_bytes import position_in

if TYPE_CHECKING:
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.topic.retention.overflow import Overflow
    from aiodq.engine.topic.retention.topic_retention import TopicRetention
    from aiodq.format.footer import SegmentIndex
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.segments.segment_list import SegmentList

__all__ = ["BacklogBound", "BoundedTopic"]

_INDEXES: Final = 2
"""Full segments whose indexes are kept in memory: where the lowest floor lay at the last look, and where it is now."""


class BoundedTopic(WholeTopic, Protocol):
    """What the bound and the put buffer need of a topic."""

    retention: TopicRetention
    overflow: Overflow


class BacklogBound:
    """The bound of one topic's backlog.

    All channels are looked at only if the result of the last look is not enough. Between two looks, a depth grows by at
    most the number of messages that became visible, and a floor only rises: this shows that there is room. The channel
    that was deepest, or the one that was furthest behind, shows that there is none.

    Attributes:
        looks: the number of looks at all channels so far.
        credit: messages that transactions are about to settle in every channel, for as many that they put.
    """

    def __init__(self, engine: BoundedTopic) -> None:
        """Count for this topic."""
        self.looks: int = 0
        self.credit: int = 0
        self._engine = engine
        self._deepest: ChannelState | None = None
        self._furthest: ChannelState | None = None
        self._seen = -1
        self._depth = self._floor = 0
        self._indexes: dict[int, SegmentIndex | None] = {}

    def forget(self) -> None:
        """Forget the last look, as a channel was created, deleted or moved."""
        self._seen = -1

    def admits(self, messages: int, cost: int) -> bool:
        """Return whether there is room for so many messages with that cost in bytes.

        Args:
            messages: their number, with those that are not visible yet.
            cost: bytes, likewise.
        """
        if self._seen >= 0:
            if self._fits(self._depth + self._engine.visible - self._seen, self._floor, messages, cost):
                return True
            deepest, furthest = self._deepest, self._furthest
            if deepest and furthest and not self._fits(deepest.depth, furthest.floor, messages, cost):
                return False
        depth, floor = self._look()
        return self._fits(depth, floor, messages, cost)

    @property
    def empty(self) -> bool:
        """Whether no channel has a backlog; without channels, whether there is no message."""
        if self._seen >= 0 and self._deepest and self._deepest.depth:
            return False
        return not self._look()[0]

    @property
    def excess(self) -> int:
        """How many messages the deepest backlog has over the bound on messages."""
        most = self._engine.options.max_messages
        return 0 if most is None else max(self._look()[0] - self.credit - most, 0)

    def admits_without(self, messages: int, cost: int) -> bool:
        """Return whether there is room, as `admits` says, without the oldest messages that are not in flight."""
        options, states = self._engine.options, self._states()
        flying = max((state.flying for state in states), default=0)
        if options.max_messages is not None and flying + messages - self.credit > options.max_messages:
            return False
        floor = self._look()[1]
        if options.max_bytes is None or self._bytes_fit(floor, options.max_bytes - cost):
            return True
        # No bytes are free before the first message that is in flight is settled.
        held = any(state.floor == floor and state.delivery(floor) is not None for state in states)
        return cost <= options.max_bytes and not held

    @property
    def idle(self) -> bool:
        """Whether no message is in flight."""
        return not any(state.flying for state in self._states())

    def _states(self) -> list[ChannelState]:
        return [one.state for one in retaining_channels(self._engine) if one.state is not None]

    def _look(self) -> tuple[int, int]:
        """Return the depth of the deepest channel, and the lowest floor of any."""
        engine = self._engine
        states = self._states()
        if not states:
            self.forget()
            begin = engine.log.begin
            return engine.visible - begin, begin
        self.looks += 1
        self._deepest = max(states, key=_depth)
        self._furthest = min(states, key=_floor)
        self._seen, self._depth, self._floor = engine.visible, self._deepest.depth, self._furthest.floor
        return self._depth, self._floor

    def _fits(self, depth: int, floor: int, messages: int, cost: int) -> bool:
        options = self._engine.options
        if options.max_messages is not None and depth + messages - self.credit > options.max_messages:
            return False
        return options.max_bytes is None or self._bytes_fit(floor, options.max_bytes - cost)

    def _bytes_fit(self, floor: int, most: int) -> bool:
        """Return whether the visible frames at `floor` and after it take no more bytes than that."""
        listed = self._engine.log.listed
        if not listed.segments:
            return most >= 0
        number = listed.at(floor)
        segment, rest = listed.segments[number], listed.frames_from(number) - self._unseen(listed)
        if rest <= most or floor <= segment.base:
            return rest <= most
        return rest - position_in(segment, floor, self._index_of(segment)) + SEGMENT_HEADER.size <= most

    def _unseen(self, listed: SegmentList) -> int:
        """Return the bytes written and not visible yet: they are counted as pending."""
        visible = self._engine.visible
        if visible >= listed.segments[-1].end:
            return 0
        number = listed.at(visible)
        segment = listed.segments[number]
        return listed.frames_from(number) - position_in(segment, visible, segment.index) + SEGMENT_HEADER.size

    def _index_of(self, segment: Segment) -> SegmentIndex | None:
        """Return the index of a segment in which a floor lies, if it is in memory; if not, it is fetched."""
        if segment.index is not None:
            return segment.index
        if segment.base not in self._indexes:
            # INVARIANT: nothing is read on the loop. Until the index is there, messages count as equal in size.
            if len(self._indexes) == _INDEXES:
                del self._indexes[next(iter(self._indexes))]
            self._indexes[segment.base] = None
            self._engine.reader.fetch_index(segment, self._fetched)
        return self._indexes[segment.base]

    def _fetched(self, segment: Segment, index: SegmentIndex | None) -> None:
        if segment.base in self._indexes:
            self._indexes[segment.base] = index
            self._engine.put_buffer.freed()


def _depth(state: ChannelState) -> int:
    return state.depth


def _floor(state: ChannelState) -> int:
    return state.floor
