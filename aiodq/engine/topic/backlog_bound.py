"""A topic's backlog, and whether it has room: counted in memory, in so many steps whatever the log and its channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from aiodq.format.layout import SEGMENT_HEADER
from aiodq.storage.log.backlog_bytes import position_in

if TYPE_CHECKING:
    from aiodq.delivery.channel_state import ChannelState
    from aiodq.engine.reading.prefetch_reader import PrefetchingReader
    from aiodq.engine.topic.no_log import NoLog
    from aiodq.engine.topic.retention import TopicRetention
    from aiodq.format.footer import SegmentIndex
    from aiodq.options import StoreOptions
    from aiodq.storage.log.topic_log import TopicLog
    from aiodq.storage.segments.segment_files import Segment
    from aiodq.storage.segments.segment_list import SegmentList

__all__ = ["BacklogBound", "BoundedTopic"]

_INDEXES: Final = 2
"""Full segments whose indexes are kept in memory: where the lowest floor lay at the last look, and where it lies."""


class _Room(Protocol):
    """See `aiodq.engine.topic.put_buffer.PutBuffer`."""

    def freed(self, *, anyhow: bool = False) -> None: ...


class BoundedTopic(Protocol):
    """What is needed of the topic that has the backlog: `aiodq.engine.topic.topic_engine.TopicEngine` has it."""

    options: StoreOptions
    log: TopicLog | NoLog
    visible: int
    retention: TopicRetention
    reader: PrefetchingReader

    @property
    def put_buffer(self) -> _Room:
        """Where puts wait for room."""
        ...


class BacklogBound:
    """One per topic.

    All channels are looked at only where what is known from the last look does not tell. Between two looks a depth
    grows by no more than became visible, and a floor only rises: that says where there is room for certain. The channel
    that was deepest then, and the one that was furthest behind, say where there is none.

    Attributes:
        looks: at all channels, so far.
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
        """A channel is there, or gone, or goes on from another offset."""
        self._seen = -1

    def admits(self, messages: int, cost: int) -> bool:
        """Return whether there is room for so many messages of so many bytes; where nothing waits, there always is.

        Args:
            messages: with those that are not visible yet.
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
        """True when no channel has anything before it; without channels, when there is no message."""
        if self._seen >= 0 and self._deepest and self._deepest.depth:
            return False
        return not self._look()[0]

    def _look(self) -> tuple[int, int]:
        """Return the depth of the deepest channel, and the lowest floor of any."""
        engine = self._engine
        states = [one.state for one in engine.retention.holding() if one.state is not None]
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
        """Return whether the frames at `floor` and behind it, as far as they are visible, take no more than that."""
        listed = self._engine.log.listed
        if not listed.segments:
            return most >= 0
        number = listed.at(floor)
        segment, rest = listed.segments[number], listed.frames_from(number) - self._unseen(listed)
        if rest <= most or floor <= segment.base:
            return rest <= most
        return rest - position_in(segment, floor, self._index_of(segment)) + SEGMENT_HEADER.size <= most

    def _unseen(self, listed: SegmentList) -> int:
        """Return the bytes of what is written and not visible yet: it counts among what is pending."""
        visible = self._engine.visible
        if visible >= listed.segments[-1].end:
            return 0
        number = listed.at(visible)
        segment = listed.segments[number]
        return listed.frames_from(number) - position_in(segment, visible, segment.index) + SEGMENT_HEADER.size

    def _index_of(self, segment: Segment) -> SegmentIndex | None:
        """Return the index of a segment in which a floor lies, if it is in memory; if not, it will be."""
        if segment.index is not None:
            return segment.index
        if segment.base not in self._indexes:
            # INVARIANT: nothing is read on the loop. Until the index is there, its messages count as alike in size.
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
