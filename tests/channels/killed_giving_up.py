"""The process of test_delivery.py that ends as if killed, while it gives a message up."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import NoReturn
from unittest import mock

import aiodq
from aiodq.delivery.channel_state import ChannelState
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from tests.processes import WATCHDOG

KILLED = 9


def _killed(*_: object) -> NoReturn:
    os._exit(KILLED)


async def _give_up(path: str, point: str, way: str) -> None:
    async with aiodq.open(path) as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead", max_attempts=1))
        await jobs.put(b"x")
        await store.queue("dead").topic.settle_in()
        message = await jobs.get()
        owner: type = TransactionFile if point == "before" else ChannelState
        with mock.patch.object(owner, "append" if point == "before" else "send_dead_letter", _killed):
            await (message.reject() if way == "reject" else message.nack())
            await asyncio.sleep(WATCHDOG)


if __name__ == "__main__":
    asyncio.run(_give_up(*sys.argv[1:]))
