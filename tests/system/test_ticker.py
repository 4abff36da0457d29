"""One timer of the event loop serves all topics of a store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiodq
from aiodq.engine.loop.ticker import _AT_ONCE, _TOGETHER, Ticker, Ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


class Timer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when, self.call = when, call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """An event loop's clock and timers, of which the test moves the first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, call))
        return self.timers[-1]

    @property
    def set(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]

    def ring(self) -> None:
        """Let the one timer ring that is set, at its time."""
        (timer,) = self.set
        self.timers.clear()
        self.now = max(self.now, timer.when)
        timer.call()


def made(count: int) -> tuple[Loop, list[str], list[Ticker], Ticks]:
    loop, told = Loop(), list[str]()
    ticks: Any = Ticks(loop)  # type: ignore[arg-type]
    return loop, told, [Ticker(ticks, lambda number=number: told.append(str(number))) for number in range(count)], ticks  # type: ignore[misc]


def test_they_tick_in_the_order_of_their_times() -> None:
    loop, told, (first, second, third), _ = made(3)
    first.within(3)
    second.within(2)
    third.within(4)
    assert [timer.when for timer in loop.set] == [2]
    loop.ring()
    assert (told, second.due) == (["1"], None)
    loop.ring()
    loop.ring()
    assert told == ["1", "0", "2"]
    assert not loop.set


def test_topics_that_ended_long_before_they_were_due_are_forgotten() -> None:
    loop, told, tickers, ticks = made(20_000)
    tickers[0].within(3600)
    for ticker in tickers[1:]:
        ticker.within(3600)
        ticker.end()
    assert len(ticks._due) <= 1000
    loop.ring()
    assert told == ["0"]


def test_what_is_forgotten_while_they_tick_takes_nothing_with_it() -> None:
    loop, told, (first, second), ticks = made(2)

    def tick() -> None:
        for _ in range(3000):
            ended = Ticker(ticks, lambda: None)
            ended.within(3600)
            ended.end()

    busy = Ticker(ticks, tick)
    busy.within(1)
    first.within(1)
    second.within(2)
    loop.ring()
    assert told == ["0"]
    loop.ring()
    assert told == ["0", "1"]


def test_what_is_due_soon_ticks_along() -> None:
    loop, told, (first, second, third), _ = made(3)
    first.within(1)
    second.within(1 + _TOGETHER)
    third.within(1.1 + _TOGETHER)
    loop.ring()
    assert told == ["0", "1"]
    assert [timer.when for timer in loop.set] == [1.1 + _TOGETHER]


def test_sooner_counts_and_later_does_not_and_each_ticks_once() -> None:
    loop, told, (ticker,), _ = made(1)
    ticker.within(5)
    ticker.within(1)
    ticker.within(3)
    loop.ring()
    assert (told, loop.now) == (["0"], 1)
    while loop.set:
        loop.ring()
    assert told == ["0"]


def test_however_soon_it_is_to_tick_others_have_a_millisecond_in_between() -> None:
    loop, told, (ticker,), _ = made(1)
    for _ in range(5):
        ticker.within(1e-9)
        loop.ring()
    assert told == ["0"] * 5
    assert loop.now >= 0.005


async def test_what_only_time_changes_is_looked_at_seldom_however_often_is_synced(tmp_path: Path) -> None:
    options = aiodq.StoreOptions(sync="interval", sync_interval=1e-9, retention=aiodq.Retention(max_age=86_400))
    async with aiodq.open(tmp_path, options) as store:
        topic = store.topic("jobs")
        topic.channel("mail")
        await topic.put(b"a")
        await topic.settle_in()
        again = topic._engine.retention.next_look()
        assert again is not None
        assert again >= 0.05


def test_very_many_let_others_have_their_turn() -> None:
    loop, told, tickers, _ = made(3 * _AT_ONCE - 1)
    for ticker in tickers:
        ticker.within(1)
    assert len(loop.timers) == 1
    most = 0
    while loop.set:
        before = len(told)
        loop.ring()
        most = max(most, len(told) - before)
    assert (len(told), most) == (len(tickers), _AT_ONCE)


def test_what_has_ended_ticks_no_more() -> None:
    loop, told, (first, second), ticks = made(2)
    first.within(1)
    second.within(1)
    first.end()
    first.within(0.5)
    loop.ring()
    assert (told, first.due) == (["1"], None)
    second.within(1)
    ticks.end()
    assert not loop.set


async def test_puts_to_many_topics_set_one_timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    # What is kept for ever is looked at only when something has happened.
    options = aiodq.StoreOptions(sync="os", sync_interval=3600, retention=aiodq.Retention(consumed="keep"))
    async with aiodq.open(tmp_path, options) as store:
        topics = [store.topic(f"t{number}") for number in range(50)]
        for topic in topics:
            await topic.put(b"")
            topic._engine.io_loop.ticker.ring()  # as if the interval were over
        async with asyncio.timeout(20):
            while any(topic._engine.tick_scheduled or topic._engine.io_loop.ticker.due for topic in topics):
                await asyncio.sleep(0.001)
        timers = 0

        def counting(inner: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal timers
                timers += 1
                return inner(*args, **options)

            return call

        for name in ("call_at", "call_later"):
            monkeypatch.setattr(loop, name, counting(getattr(loop, name)))
        for topic in topics:
            await topic.put(b"")
        monkeypatch.undo()
        assert all(topic._engine.io_loop.ticker.due for topic in topics)
        assert timers <= 2
