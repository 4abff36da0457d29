"""A FastAPI service that answers an order once it is on disk and works it off in the background.

    pip install 'aiodq[fastapi]'
    python examples/fastapi_orders.py --store orders.aiodq --done done.jsonl --port 8000

    curl -i localhost:8000/orders -H 'content-type: application/json' -d '{"item": "tea", "quantity": 2}'
    curl localhost:8000/stats

Stop it with SIGTERM or Ctrl-C while orders come in, kill it, cut the power: an order that was answered with 202 is in
`done.jsonl` or in the queue, and the next start goes on with it. At SIGTERM the orders in hand have some seconds to be
worked off. One that was killed in hand is worked off again, so the work has to stand being done twice.
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
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import aiodq

LARGEST_ORDER = 16 * 1024
RETRYING = aiodq.ChannelOptions(backoff=aiodq.Backoff(first=1.0, limit=60.0), max_attempts=5, dead_letter="failed")
"""An order that fails five times is quarantined, in the topic `failed`, with what was wrong."""

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


def named(stats: aiodq.ChannelStats) -> dict[str, Any]:
    """Return stats for JSON, in which a latency would be a list otherwise."""
    return {
        name: value._asdict() if isinstance(value, aiodq.Latency) else value for name, value in asdict(stats).items()
    }


@router.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """Show what is waiting and what was done since the start."""
    orders: aiodq.Queue = request.app.state.orders
    return named(orders.stats())


async def malformed(_: Request, error: Exception) -> JSONResponse:
    """Answer what is no order. FastAPI's own answer repeats the value, which may be none that JSON has (NaN)."""
    errors = error.errors() if isinstance(error, RequestValidationError) else ()
    return JSONResponse({"detail": [{name: each[name] for name in ("type", "loc", "msg")} for each in errors]}, 422)


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


def lifespan_of(
    path: Path, shop: WorkShop, workers: int, grace: float
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return what opens the store before the first request and closes it after the last one was answered."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with aiodq.open(path, aiodq.StoreOptions(max_message_bytes=LARGEST_ORDER)) as store:
            orders = store.queue("orders", RETRYING)
            app.state.orders = orders
            log.info("%d orders waiting", orders.depth)
            consuming = asyncio.create_task(orders.consume(shop.work, concurrency=workers))
            consuming.add_done_callback(stop_if_failed)
            yield
            await store.stop(grace)  # orders in hand are worked off, or go back into the queue after `grace`
            await asyncio.wait([consuming])
            log.info("%d orders left for the next start", orders.depth)

    return lifespan


def create_app(store: Path, done: Path, *, workers: int = 4, seconds: float = 0.02, grace: float = 10.0) -> FastAPI:
    """Return the service."""
    app = FastAPI(title="Orders", lifespan=lifespan_of(store, WorkShop(done, seconds), workers, grace))
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, malformed)
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
    parser.add_argument("--grace", type=float, default=10.0, help="seconds that orders in hand have at the end")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Having shut down, uvicorn raises the signal again for the handler that was there before: an orderly end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = create_app(args.store, args.done, workers=args.workers, seconds=args.seconds, grace=args.grace)
    uvicorn.run(app, host=args.host, port=args.port, access_log=False)


if __name__ == "__main__":
    main()
