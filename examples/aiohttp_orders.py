"""An aiohttp service that answers an order once it is on disk and works it off in the background.

    pip install 'aiodq[aiohttp]'
    python examples/aiohttp_orders.py --store orders.aiodq --done done.jsonl --port 8000

    curl -i localhost:8000/orders -d '{"item": "tea", "quantity": 2}'
    curl localhost:8000/stats

Stop it with SIGTERM or Ctrl-C while orders come in, kill it, cut the power: an order that was answered with 202 is in
`done.jsonl` or in the queue, and the next start goes on with it. At SIGTERM the orders in hand have some seconds to be
worked off. One that was killed in hand is worked off again, so the work has to stand being done twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

import aiodq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LARGEST_ORDER = 16 * 1024
RETRYING = aiodq.ChannelOptions(backoff=aiodq.Backoff(first=1.0, limit=60.0), max_attempts=5, dead_letter="failed")
"""An order that fails five times is quarantined, in the topic `failed`, with what was wrong."""
GRACE = 5.0
"""Seconds that requests under way have at shutdown."""

ORDERS = web.AppKey("ORDERS", aiodq.Queue)

log = logging.getLogger("orders")
routes = web.RouteTableDef()


def checked(body: bytes) -> bytes:
    """Return an order if it is one, as the queue keeps it.

    Raises:
        HTTPUnprocessableEntity: it is not.
    """
    try:
        order = json.loads(body)
        item, quantity = order["item"], order["quantity"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise web.HTTPUnprocessableEntity(text="an order is JSON with an item and a quantity") from None
    if not isinstance(item, str) or not item or type(quantity) is not int or quantity < 1:
        raise web.HTTPUnprocessableEntity(text="an order has an item and a quantity of at least 1")
    return json.dumps({"item": item, "quantity": quantity}).encode()


@routes.post("/orders")
async def accept(request: web.Request) -> web.Response:
    """Answer 202 once the order is on disk."""
    body = checked(await request.read())  # 413 beyond `client_max_size`
    try:
        offset = await request.app[ORDERS].put(body)
    except aiodq.MessageSizeError as error:
        raise web.HTTPRequestEntityTooLarge(LARGEST_ORDER, len(body), text=str(error)) from error
    except (aiodq.QueueShutDown, aiodq.QueueFull, aiodq.StorageError) as error:
        # Shutting down, no space, or the disk failed: the order is not promised, and the customer may try again.
        log.warning("order refused: %s", error)
        raise web.HTTPServiceUnavailable(headers={"Retry-After": "5"}) from error
    return web.json_response({"id": f"{offset:016x}"}, status=202)


def named(stats: aiodq.ChannelStats) -> dict[str, object]:
    """Return stats for JSON, in which a latency would be a list otherwise."""
    return {
        name: value._asdict() if isinstance(value, aiodq.Latency) else value for name, value in asdict(stats).items()
    }


@routes.get("/stats")
async def stats(request: web.Request) -> web.Response:
    """Show what is waiting and what was done since the start."""
    return web.json_response(named(request.app[ORDERS].stats()))


class WorkShop:
    """Works off orders, one line in `done` for each."""

    def __init__(self, done: Path, seconds: float) -> None:
        """Pretend that an order takes that many seconds."""
        self._done = done
        self._seconds = seconds

    async def work(self, order: aiodq.Message) -> None:
        """Work off one order: acked when this returns, tried again later if it raises, released if cancelled."""
        await asyncio.sleep(self._seconds)
        # Nothing is awaited after the work's effect, so cancelling cannot come between that and the ack.
        with self._done.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"id": order.id, **json.loads(order.body)}) + "\n")


def stop_if_failed(consuming: asyncio.Task[None]) -> None:
    """Shut the service down when the store has failed: it heals only by being opened again."""
    if not consuming.cancelled() and (error := consuming.exception()) is not None:
        log.critical("no order is worked off any more", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


def queue_of(
    path: Path, shop: WorkShop, workers: int, grace: float
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return what opens the store before the first request and closes it after the last one was answered."""

    async def queue(app: web.Application) -> AsyncIterator[None]:
        async with aiodq.open(path, aiodq.StoreOptions(max_message_bytes=LARGEST_ORDER)) as store:
            orders = store.queue("orders", RETRYING)
            app[ORDERS] = orders
            log.info("%d orders waiting", orders.depth)
            consuming = asyncio.create_task(orders.consume(shop.work, concurrency=workers))
            consuming.add_done_callback(stop_if_failed)
            yield
            await store.stop(grace)  # orders in hand are worked off, or go back into the queue after `grace`
            await asyncio.wait([consuming])
            log.info("%d orders left for the next start", orders.depth)

    return queue


def create_app(
    store: Path, done: Path, *, workers: int = 4, seconds: float = 0.02, grace: float = 10.0
) -> web.Application:
    """Return the service."""
    app = web.Application(client_max_size=LARGEST_ORDER)
    app.add_routes(routes)
    app.cleanup_ctx.append(queue_of(store, WorkShop(done, seconds), workers, grace))
    return app


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description="Take orders and work them off, losing none.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--store", type=Path, default=Path("orders.aiodq"), help="the queue's directory")
    parser.add_argument("--done", type=Path, default=Path("done.jsonl"), help="gets a line for each order worked off")
    parser.add_argument("--workers", type=int, default=4, help="orders worked off at a time")
    parser.add_argument("--seconds", type=float, default=0.02, help="what an order takes")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds that orders in hand have at the end")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    app = create_app(args.store, args.done, workers=args.workers, seconds=args.seconds, grace=args.grace)
    # Ends at SIGTERM and SIGINT, having answered what has arrived. A request whose body has not is not read any further
    # then, so there is no use in waiting long for it; 60 seconds is the default.
    web.run_app(app, host=args.host, port=args.port, shutdown_timeout=GRACE)


if __name__ == "__main__":
    main()
