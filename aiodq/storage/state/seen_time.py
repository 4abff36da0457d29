"""The time that passes between puts or commits, unaffected by jumps of the wall clock."""

from __future__ import annotations

from typing import Final

__all__ = ["SeenTime"]

_LONGEST_STEP_NS: Final = 60 * 1_000_000_000
"""The most nanoseconds that count between two moments: a wall clock that jumps forward, or a machine that sleeps, is to
make nobody forgotten whose put or transaction is still to be repeated."""


class SeenTime:
    """The time that has passed between observed moments.

    Attributes:
        passed_ns: nanoseconds since the first one; never too many, as each step counts as at most a minute.
    """

    __slots__ = ("_latest_ns", "passed_ns")

    def __init__(self) -> None:
        """Start before the first moment."""
        self.passed_ns: int = 0
        self._latest_ns = 0

    def see(self, time_ns: int) -> int:
        """Note a moment, by the wall clock; return `passed_ns`."""
        step = time_ns - self._latest_ns
        if step > 0:
            self.passed_ns += min(step, _LONGEST_STEP_NS)
            self._latest_ns = time_ns
        return self.passed_ns
