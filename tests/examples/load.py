"""A bounded load on an order service: so many orders, so many at a time, and what was answered."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx

from tests.examples.support import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Load"]


class Load:
    """Orders that are sent to a service that may lose workers, or end.

    Attributes:
        accepted: the numbers of orders that were answered with 202.
        refused: of those that were answered otherwise, or not at all: nobody knows of them.
        slowest: the longest that an answer took, seconds.
    """

    def __init__(self, url: str, *, at_once: int = 8, patience: float = 30.0) -> None:
        """Prepare.

        Args:
            url: the service.
            at_once: requests under way at most.
            patience: seconds that an answer may take.
        """
        self.accepted: list[int] = []
        self.refused: list[int] = []
        self.slowest = 0.0
        self._url = url
        self._at_once = at_once
        self._patience = patience
        self._next = 0

    def run(self, number: int, meanwhile: Callable[[int], None] = lambda _: None) -> None:
        """Send so many orders.

        Args:
            number: of orders.
            meanwhile: called in a thread with the number of orders sent, before each.
        """
        asyncio.run(self._run(number, meanwhile))

    async def _run(self, number: int, meanwhile: Callable[[int], None]) -> None:
        end = self._next + number
        limits = httpx.Limits(max_connections=self._at_once, max_keepalive_connections=0)  # any worker may get the next
        async with (
            httpx.AsyncClient(base_url=self._url, timeout=self._patience, limits=limits, verify=PLAIN) as client,
            asyncio.TaskGroup() as senders,
        ):
            for _ in range(self._at_once):
                senders.create_task(self._send(client, end, meanwhile))

    async def _send(self, client: httpx.AsyncClient, end: int, meanwhile: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        while self._next < end:
            number, self._next = self._next, self._next + 1
            await asyncio.to_thread(meanwhile, number)
            began = loop.time()
            try:
                answer = await client.post("/orders", content=json.dumps({"number": number}).encode())
            except httpx.TransportError:
                self.refused.append(number)
                continue
            self.slowest = max(self.slowest, loop.time() - began)
            (self.accepted if answer.status_code == httpx.codes.ACCEPTED else self.refused).append(number)
