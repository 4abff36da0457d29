"""A process that owns a store, to be killed: `python -m tests.model.owner PATH SECONDS OPTIONS`.

Its clock stands still after SECONDS; OPTIONS are the store's, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiodq
from aiodq.testing import FakeClock


async def main(path: str, seconds: float, options: aiodq.StoreOptions) -> None:
    """Serve until the standard input ends."""
    clock = FakeClock()
    clock.advance(seconds)
    async with aiodq.open(path, options, mode="shared", clock=clock):
        print("serving", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), aiodq.StoreOptions(**json.loads(sys.argv[3]))))
