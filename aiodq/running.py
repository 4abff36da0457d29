"""Runs a program on uvloop if it is installed, else on asyncio's event loop."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aiodq.errors import InvalidOptionTypeError, WrongContextError
from aiodq.values import shown

__all__ = ["loop_factory", "loop_runs_here", "run", "trio_runs_here"]

T = TypeVar("T")


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a function that makes an event loop: uvloop's if it is installed, else asyncio's."""
    try:
        import uvloop  # noqa: PLC0415 - it may not be installed
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T], *, debug: bool | None = None) -> T:
    """Run a coroutine to its end and return its result, as `asyncio.run` does, but on uvloop if it is installed.

    ```python
    async def main() -> None:
        async with aiodq.open_queue("jobs") as jobs:
            await jobs.put(b"resize cat.png")

    aiodq.run(main())
    ```

    Args:
        main: the coroutine, made by calling an `async def` function.
        debug: asyncio's debug mode; None leaves it as the environment says.

    Returns:
        What the coroutine returns.

    Raises:
        InvalidOptionError: it is no coroutine; a `TypeError` too.
        WrongContextError: an event loop runs in this thread already, asyncio's or trio's.

    Cancellation: SIGINT cancels the coroutine, so that its stores are closed, and then raises `KeyboardInterrupt`.
    """
    if not inspect.iscoroutine(main):
        name = getattr(main, "__name__", "main")
        example = f"write aiodq.run({name}())" if callable(main) else "write aiodq.run(main())"
        raise InvalidOptionTypeError(f"aiodq.run takes a coroutine, not {shown(main)}: {example}")
    if loop_runs_here():
        main.close()
        raise WrongContextError("an event loop runs here already: write await main() instead of aiodq.run(main())")
    if trio_runs_here():
        main.close()
        raise WrongContextError(
            "trio runs here, and aiodq needs asyncio: call aiodq.sync from a thread, as by trio.to_thread.run_sync"
        )
    with asyncio.Runner(debug=debug, loop_factory=loop_factory()) as runner:
        result: T = runner.run(main)
        return result


def loop_runs_here() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def trio_runs_here() -> bool:
    """Return whether a trio task is running. An event loop inside it would wait for ever, as anyio would use trio."""
    trio = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True
