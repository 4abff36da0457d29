"""The messages of a channel that a process keeps from timing out at the owner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiodq.options import seconds
from aiodq.wire.layout import UNSET
from aiodq.wire.payload import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from aiodq.shared.consuming.holdings import Holdings

__all__ = ["Timeouts"]

_SECOND: Final = 1_000_000_000
_RENEWALS: Final = 3
"""How often in each `visibility_timeout` the timeout of messages being processed is restarted."""

_SLACK: Final = 64
"""Messages that are held no more and still noted as touched, before such notes are dropped."""


class Timeouts:
    """Tells the owner not to let messages time out: once, or for as long as they are processed."""

    def __init__(
        self,
        holdings: Callable[[], Holdings],
        send: Callable[[tuple[Item, ...]], None],
        timeout: Callable[[], float | timedelta | None],
    ) -> None:
        """Start without messages.

        Args:
            holdings: returns what is held.
            send: sends a touch to the owner, if there is one.
            timeout: returns the channel's `visibility_timeout`; None if nothing times out any more.
        """
        self._holdings = holdings
        self._send = send
        self._timeout = timeout
        # Until when messages are kept by `touch` with a time of its own, by number, in the loop's seconds.
        self._touched: dict[int, float] = {}
        self._renewed: dict[int, int] = {}
        self._renewing: asyncio.TimerHandle | None = None
        self._renew_at = 0.0

    def touch(self, number: int, extend: int | None) -> None:
        """Restart a message's timeout, with `extend` nanoseconds or the channel's own timeout."""
        self._touched.pop(number, None)
        if extend is not None:
            self._touched[number] = asyncio.get_running_loop().time() + extend / _SECOND
            if len(self._touched) > 2 * len(self._holdings()) + _SLACK:
                self._forget()
        self._touch([number], UNSET if extend is None else extend)

    def again(self) -> None:
        """Tell a new owner how long the messages held here are to be kept."""
        now = asyncio.get_running_loop().time()
        self._forget()
        for number, until in self._touched.items():
            self._touch([number], max(round((until - now) * _SECOND), 0))

    def _forget(self) -> None:
        """Forget messages that are no longer held."""
        holdings = self._holdings()
        self._touched = {number: until for number, until in self._touched.items() if holdings.get(number)}

    def _touch(self, numbers: Iterable[int], span: int) -> None:
        those = self._holdings().rows(range(number, number + 1) for number in numbers)
        if those:
            self._send(tuple(Item(one.offset, one.delivery, span, one.attempts) for one in those))

    def renew(self, number: int) -> None:
        """Restart a message's timeout regularly, until `renew_no_more` was called as many times."""
        self._renewed[number] = self._renewed.get(number, 0) + 1
        self._renew_later()

    def renew_no_more(self, number: int) -> bool:
        """Undo one call of `renew`; return whether it was the last."""
        left = self._renewed.get(number, 0) - 1
        if left > 0:
            self._renewed[number] = left
            return False
        return self._renewed.pop(number, None) is not None

    def go_by_options(self) -> None:
        """Restart timeouts as often as the options ask for now: with a shorter one, sooner than was planned."""
        self._renew_later()

    def _renew_later(self) -> None:
        timeout = self._timeout()
        if timeout is None or not self._renewed:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds(timeout) / _RENEWALS
        if self._renewing is not None:
            if self._renew_at <= at:
                return
            self._renewing.cancel()
        self._renew_at = at
        self._renewing = loop.call_at(at, self._renew_all)

    def _renew_all(self) -> None:
        self._renewing = None
        holdings = self._holdings()
        self._touch([number for number in self._renewed if holdings.free_of(range(number, number + 1))], UNSET)
        self._renew_later()

    def stop(self) -> None:
        """Stop restarting timeouts."""
        if self._renewing is not None:
            self._renewing.cancel()
