"""What clients claim of a channel, as they held it under an earlier owner, and which of them has a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiodq.shared.requests.lent.epochs import began_later

if TYPE_CHECKING:
    from aiodq.delivery.channel_state import ChannelState

__all__ = ["Claim", "Claims", "comes_too_late"]


class Claim(NamedTuple):
    """A claim of one message: who delivered it, as which delivery of that owner, and how often it was delivered."""

    epoch: int
    delivery: int
    attempts: int

    def is_later_than(self, other: Claim) -> bool:
        """Return whether this is the later delivery of the message, or the same one, claimed again."""
        if self.epoch == other.epoch:
            return self.delivery >= other.delivery
        later = began_later(self.epoch, other.epoch)
        return self.attempts > other.attempts if later is None else later


class Claims:
    """The claims of one channel's messages, for as long as messages may be claimed.

    Several may claim one: who has made it ready again, which no owner has confirmed, and who got it then. The last one
    that got it has it.
    """

    def __init__(self) -> None:
        """Start without claims."""
        # By offset, with the number under which the message is in flight again.
        self._granted: dict[int, tuple[Claim, int]] = {}

    def makes_ready(self, state: ChannelState, offset: int, claim: Claim) -> bool:
        """Make a message ready for this claim, if another has it or defers it that got it before; return if it is."""
        granted = self._granted.get(offset)
        if granted is not None:
            before, number = granted
            if not claim.is_later_than(before):
                return False
            # INVARIANT: under another number it is on its way to the dead letters, and nobody's.
            if state.delivery(offset) == number:
                state.release(offset, state.attempts(offset) + 1)
        if offset in state.deferred and (granted is not None or claim.attempts > state.attempts(offset)):
            state.recall(offset)
        return state.is_ready(offset)

    def grant(self, offset: int, claim: Claim, number: int) -> None:
        """Note that the message is in flight under that number for this claim."""
        self._granted[offset] = claim, number


def comes_too_late(state: ChannelState, offset: int, attempts: int, *, in_time: bool) -> bool:
    """Return whether a message was made ready again, and counted, after the delivery that made it this many.

    Args:
        state: the channel's.
        offset: the message's.
        attempts: its number of deliveries, with that one.
        in_time: whether the message was given to no other meanwhile: messages may still be claimed, and the client has
            missed no owner.
    """
    # As many are noted, too, if the delivery was, as it happened, or if a rejection was begun. A message whose
    # deliveries are noted is an orphan, and each later one counts one more. A rejection is repeated in time.
    before = state.attempts(offset)
    return attempts < before or (attempts == before and not in_time and offset not in state.orphans)
