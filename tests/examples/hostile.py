"""The jobs service with kinds of jobs that nobody wishes for: `python hostile.py DONE --store … --port …`."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiodq

ATTEMPTS = 4


def main(example: Path, done: str) -> None:
    """Run the example with jobs that note what they did in the file `done`, or go wrong in some way."""
    spec = importlib.util.spec_from_file_location("fastapi_service", example)
    assert spec is not None
    assert spec.loader is not None
    service: Any = importlib.util.module_from_spec(spec)
    sys.modules["fastapi_service"] = service
    spec.loader.exec_module(service)
    service.RETRYING = dataclasses.replace(
        service.RETRYING, max_attempts=ATTEMPTS, backoff=aiodq.Backoff(first=0.4, limit=5)
    )
    service.QUICK, service.SLOW = service.QUICK._replace(timeout=0.5), service.SLOW._replace(timeout=60)
    service.LANES = service.QUICK, service.SLOW
    lines = os.open(done, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def note(argument: str) -> None:
        await asyncio.sleep(0.005)
        os.write(lines, f"{time.time_ns()} {argument}\n".encode())

    async def slow(argument: str) -> None:
        await asyncio.sleep(0.5)
        await note(argument)

    async def poison(argument: str) -> None:
        raise ValueError(f"{argument} is poison")

    async def cancel(_: str) -> None:
        raise asyncio.CancelledError

    async def hang(_: str) -> None:
        await asyncio.Event().wait()

    async def crash(_: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for function in (note, poison, cancel, hang, crash):
        service.kind(function.__name__, service.QUICK)(function)
    service.kind("slow", service.SLOW)(slow)
    service.main()


if __name__ == "__main__":
    where, noted = sys.argv[1:3]
    sys.argv = [where, *sys.argv[3:]]
    main(Path(where), noted)
