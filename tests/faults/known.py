"""What is known of each message, however its calls ended: that something was done, that it was not, or neither."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final

import aiodq

if TYPE_CHECKING:
    from tests.faults.processes import Process

__all__ = ["LATE", "Joined", "Known", "Sent", "Topic"]


_UNDECIDED: Final = (aiodq.StoreFailedError, aiodq.OwnerLostError, aiodq.OwnerStalledError)
"""Errors after which nobody knows what was done."""


LATE: Final = 10.0
"""Seconds that may pass before a put that was called begins."""


class Known(Enum):
    """Whether something was done."""

    NO = "no"
    PERHAPS = "perhaps"
    YES = "yes"


@dataclass
class Sent:
    """A message.

    Attributes:
        body: no other message has it.
        put: whether it is in the log.
        offset: where, once that was said.
        settled: by each channel, whether it was settled.
        dead: by each channel that rejected it, whether there must be a dead letter; perhaps: unless it comes again.
        held: by channel, the process of the consumer that has it in hand.
        tries: by channel, how often it was settled, as far as that is unknown.
        kept: the channels of which a consumer may have kept it, as it could not put it down.
        dies: when its time to live is over, in seconds of the clock.
    """

    body: bytes
    put: Known = Known.PERHAPS
    offset: int | None = None
    settled: dict[str, Known] = field(default_factory=dict)
    dead: dict[str, Known] = field(default_factory=dict)
    held: dict[str, Process] = field(default_factory=dict)
    tries: Counter[str] = field(default_factory=Counter)
    kept: set[str] = field(default_factory=set)
    dies: float = inf

    def put_ended(self, error: BaseException | None) -> None:
        """Note how the call that put it ended."""
        if error is None:
            self.put = Known.YES
        elif isinstance(error, aiodq.StorageError) and not isinstance(error, _UNDECIDED):
            self.put = Known.NO

    def settling(self, channel: str, *, reject: bool = False) -> None:
        """Note that it is about to be settled: from now on either may be found."""
        if self.settled.get(channel) is Known.NO:
            self.settled[channel] = Known.PERHAPS
        self.tries[channel] += 1
        if self.dead.get(channel) is not Known.YES:
            self.dead[channel] = Known.PERHAPS if reject else Known.NO

    def settling_ended(self, process: Process, channel: str, error: BaseException | None) -> None:
        """Note how the call of this process that settles it ended."""
        self.put_down(process, channel)
        if isinstance(error, aiodq.NotInFlightError) and self.dead.get(channel) is Known.PERHAPS:
            self.dead[channel] = Known.NO  # a seek has settled it, without a dead letter
        if error is None and channel in self.settled:
            self.settled[channel] = Known.YES
            if self.dead.get(channel) is Known.PERHAPS:
                self.dead[channel] = Known.YES

    def put_down(self, process: Process, channel: str) -> None:
        """Note that this process's consumer has it in hand no more."""
        if self.held.get(channel) is process:
            del self.held[channel]

    def let_go(self, channel: str) -> None:
        """Note that nobody has to have it any more, nor may not."""
        if channel in self.settled:
            self.settled[channel] = Known.PERHAPS
        if self.dead.get(channel) is Known.PERHAPS:
            self.dead[channel] = Known.NO
        self.tries[channel] += 1
        self.held.pop(channel, None)

    def found(self, channel: str, now: float, *, ready: bool, dead: bool, opened: bool) -> None:
        """Note whether a channel still has it, and whether there is a dead letter of it, now that it was opened.

        Until then, what is in memory only counts, too.
        """
        assert not (ready and self.settled[channel] is Known.YES), f"{channel} has {self.body!r}, which was settled"
        assert not (ready and now > self.dies + LATE), f"{channel} has {self.body!r}, whose time to live is over"
        lost = not ready and self.put is Known.YES and self.settled[channel] is Known.NO
        assert not lost or now >= self.dies or (channel in self.kept and not opened), f"{channel} lacks {self.body!r}"
        if not opened:
            return
        self.kept.discard(channel)
        claim = self.dead.get(channel, Known.NO)
        assert dead or claim is Known.NO or (ready and claim is Known.PERHAPS), f"no dead letter of {self.body!r}"
        self.dead[channel] = Known.YES if dead else Known.NO
        self.settled[channel] = Known.NO if ready else Known.YES
        self.tries[channel] = 0

    def may_be_lost(self) -> None:
        """Note that what was not synced may be gone."""
        if self.put is Known.YES:
            self.put = Known.PERHAPS
        for channel in self.settled:
            self.settled[channel] = Known.PERHAPS
        self.dead = dict.fromkeys(self.dead, Known.NO)


@dataclass
class Topic:
    """A log, until it is deleted.

    Attributes:
        keeps: whether what all channels have settled stays in the log.
        channels: those that are there for sure; each sees everything from the first message on.
        sent: by body, what was put, or not.
        loading: whether a bulk load may still bring something.
    """

    name: str
    keeps: bool
    channels: set[str] = field(default_factory=set)
    sent: dict[bytes, Sent] = field(default_factory=dict)
    loading: bool = False

    def send(self, body: bytes) -> Sent:
        """Note that a message is about to be put."""
        sent = self.sent[body] = Sent(body, settled=dict.fromkeys(sorted(self.channels), Known.NO))
        return sent


@dataclass
class Joined:
    """A transaction: all that is in it counts, or none of it."""

    puts: list[tuple[Topic, Sent]]
    acks: list[tuple[Topic, str, Sent]]
