"""The counters of a channel."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """How often each event happened since the channel was opened."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    requeued: int = 0
    timed_out: int = 0
    dead: int = 0
    expired: int = 0
    filtered: int = 0
    dropped: int = 0
    lost: int = 0
    cancelled: int = 0

    def take_back(self, attempts: int) -> None:
        """Uncount a delivery, and the requeue that ended it; `attempts` includes that delivery."""
        self.requeued -= 1
        self.delivered -= 1
        self.redelivered -= attempts > 1
