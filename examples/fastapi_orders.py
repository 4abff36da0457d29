"""A FastAPI service that answers an order once it is on disk and works it off in the background.

    pip install 'aiodq[fastapi]'
    python examples/fastapi_orders.py --store orders.aiodq --done done.jsonl --port 8000

    curl -i localhost:8000/orders -H 'content-type: application/json' -d '{"item": "tea", "quantity": 2}'
    curl localhost:8000/stats

Stop it with SIGTERM or Ctrl-C while orders come in, kill it, cut the power: an order that was answered with 202 is in
`done.jsonl` or in the queue, and the next start goes on with it. An order that was being worked off at that moment is
worked off again, so the work has to stand being done twice.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import aiodq

LARGEST_ORDER = 16 * 1024
MAX_ATTEMPTS = 5
PAUSE = 1.0
"""Seconds after a failure, so that an order that fails at once does not keep a worker spinning."""

log = logging.getLogger("orders")
router = APIRouter()


class Order(BaseModel):
    """What a customer sends. Anything else is answered with 422."""

    item: str = Field(min_length=1)
    quantity: int = Field(gt=0)


@router.post("/orders", status_code=202)
async def accept(order: Order, request: Request) -> dict[str, str]:
    """Answer 202 once the order is on disk."""
    orders: aiodq.Queue = request.app.state.orders
    offset = await orders.put(order.model_dump_json().encode())
    return {"id": f"{offset:016x}"}


@router.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """Show what is waiting and what was done since the start."""
    orders: aiodq.Queue = request.app.state.orders
    return asdict(orders.stats())


async def too_large(_: Request, error: Exception) -> JSONResponse:
    """Answer an order that the queue does not take. A proxy in front should bound the request's body, too."""
    return JSONResponse({"detail": str(error)}, 413)


async def unavailable(_: Request, error: Exception) -> JSONResponse:
    """Answer an order that is not promised: shutting down, no space, or the disk failed. The customer may try again."""
    log.warning("order refused: %s", error)
    return JSONResponse({"detail": "no orders are taken at the moment"}, 503, {"Retry-After": "5"})


class WorkShop:
    """Works off orders, one line in `done` for each."""

    def __init__(self, done: Path, seconds: float) -> None:
        """Pretend that an order takes that many seconds."""
        self._done = done
        self._seconds = seconds

    async def run(self, orders: aiodq.Queue, failed: aiodq.Topic) -> None:
        """Work until cancelled; several of these share the queue."""
        async for order in orders:
            try:
                async with order:  # acked at the end, requeued if it fails, released if cancelled
                    if order.attempts <= MAX_ATTEMPTS:
                        await self._work_off(order)
                    else:
                        await failed.put(order.body, headers={"order": order.id})
            except aiodq.StoreFailedError:
                raise  # the store's trouble, not the order's
            except Exception:
                log.exception("order %s failed at attempt %d", order.id, order.attempts)
                await asyncio.sleep(PAUSE)

    async def _work_off(self, order: aiodq.Message) -> None:
        await asyncio.sleep(self._seconds)
        # Nothing is awaited between the work's effect and the ack, so cancelling cannot come between them.
        with self._done.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"id": order.id, **json.loads(order.body)}) + "\n")


def stop_if_failed(worker: asyncio.Task[None]) -> None:
    """Shut the service down when a worker ends by itself: a store that failed heals only by being opened again."""
    if not worker.cancelled() and (error := worker.exception()) is not None:
        log.critical("a worker stopped", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


def lifespan_of(path: Path, shop: WorkShop, workers: int) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return what opens the store before the first request and closes it after the last one was answered."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with aiodq.open(path, aiodq.StoreOptions(max_message_bytes=LARGEST_ORDER)) as store:
            orders, failed = store.queue("orders"), store.topic("failed")
            app.state.orders = orders
            tasks = [asyncio.create_task(shop.run(orders, failed)) for _ in range(workers)]
            for task in tasks:
                task.add_done_callback(stop_if_failed)
            log.info("%d orders waiting", orders.depth)
            yield
            for task in tasks:
                task.cancel()  # what is in hand goes back into the queue
            await asyncio.gather(*tasks, return_exceptions=True)
            log.info("%d orders left for the next start", orders.depth)

    return lifespan


def create_app(store: Path, done: Path, *, workers: int = 4, seconds: float = 0.02) -> FastAPI:
    """Return the service."""
    app = FastAPI(title="Orders", lifespan=lifespan_of(store, WorkShop(done, seconds), workers))
    app.include_router(router)
    app.add_exception_handler(aiodq.MessageSizeError, too_large)
    for error in (aiodq.QueueShutDown, aiodq.QueueFull, aiodq.StorageError):
        app.add_exception_handler(error, unavailable)
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
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Having shut down, uvicorn raises the signal again for the handler that was there before: an orderly end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = create_app(args.store, args.done, workers=args.workers, seconds=args.seconds)
    uvicorn.run(app, host=args.host, port=args.port, access_log=False)


if __name__ == "__main__":
    main()
