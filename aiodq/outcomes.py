"""Exceptions that a handler raises to decide what happens to its message. They are not errors."""

from __future__ import annotations

from datetime import timedelta

from aiodq.values import span_seconds

__all__ = ["Reject", "Retry"]


class Retry(Exception):  # noqa: N818 - it ends an attempt, it is no error
    """Raised in a handler, or in a message's block: deliver the message again, after a wait.

    The attempt counts: if it was the last that the channel's `max_attempts` allows, the message is given up. `raise
    Retry(60) from error` keeps the error, which a dead letter then names.

    Attributes:
        delay: seconds, or a `timedelta`; None: the message waits as after any other failure.
    """

    delay: float | timedelta | None = None
    """Of a subclass with an `__init__` of its own, too."""

    def __init__(self, delay: float | timedelta | None = None) -> None:
        """Set the wait.

        Raises:
            InvalidOptionError: a negative or endless wait; a `TypeError` too where it is of another type.
        """
        if delay is not None:
            span_seconds("delay", delay)
        super().__init__(*(() if delay is None else (delay,)))
        self.delay = delay

    def __str__(self) -> str:
        """Describe the wait."""
        return "as the channel waits" if self.delay is None else f"after {self.delay}"


class Reject(Exception):  # noqa: N818 - it ends a message, it is no error
    """Raised in a handler, or in a message's block: give the message up, as `Message.reject` does.

    `raise Reject("no such customer") from error` keeps the error, which the dead letter then names, too.

    Attributes:
        reason: as text.
    """

    reason: str = ""
    """As `Retry.delay`."""

    def __init__(self, reason: str = "") -> None:
        """Set the reason."""
        super().__init__(reason)
        self.reason = reason
