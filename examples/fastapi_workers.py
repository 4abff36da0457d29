"""An order service with many workers: each takes orders and works some off, and they share one queue.

    ORDERS=orders DONE=done uvicorn --app-dir examples --workers 4 fastapi_workers:app
    ORDERS=orders DONE=done gunicorn --chdir examples -w 4 -k uvicorn_worker.UvicornWorker fastapi_workers:app
    ORDERS=orders DONE=done granian --interface asgi --working-dir examples --workers 4 \
        --respawn-failed-workers --workers-kill-timeout 10 fastapi_workers:app
    curl -d '{"item": "tea"}' -H 'content-type: application/json' http://127.0.0.1:8000/orders

One worker owns the queue and serves the others; when it ends, another takes over. What a worker answered with 202 is on
disk and is worked off, whichever workers are killed. A worker that is killed between its work and its ack leaves an
order that comes again, to another: so the work is made to count once, here by a file named after the order.

granian (2.8) loses a SIGTERM for workers that it is just starting, and then waits for them for ever, whatever they run:
`--workers-kill-timeout` ends that. What it kills then is, for the queue, a worker that was killed. Without
`--respawn-failed-workers` it ends as a whole where a worker is killed.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

import aiodq

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LARGEST_ORDER = 16 * 1024
DONE = Path(os.environ.get("DONE", "done"))
DONE.mkdir(exist_ok=True)
BOUNDED = aiodq.StoreOptions(max_message_bytes=LARGEST_ORDER)


async def ship(order: aiodq.Message) -> None:
    """Work an order off: it is done whole or not at all, and once, as only one can give it its name."""
    await asyncio.sleep(0.002)
    draft = DONE / f"{order.id}.{os.getpid()}"
    draft.write_bytes(order.body)
    try:
        os.link(draft, DONE / order.id)
    except FileExistsError:
        print(f"{order.id} was done before, by a worker that was killed before its ack")
    draft.unlink()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have the queue for as long as this worker runs; at its end let the orders in hand be finished."""
    async with aiodq.open_queue(os.environ.get("ORDERS", "orders"), BOUNDED, mode="shared") as orders:
        app.state.orders = orders
        shipping = asyncio.create_task(orders.consume(ship, concurrency=4))
        yield
        await orders.stop(grace=5)
        await shipping


async def too_large(_: Request, error: Exception) -> JSONResponse:
    """Answer an order that the queue does not take. A proxy in front should bound the request's body, too."""
    return JSONResponse({"detail": str(error)}, 413)


async def unavailable(_: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - FastAPI hands it over
    """Answer an order that is not promised: at the end, no space, or no owner. The customer may try again."""
    return JSONResponse({"detail": "no orders are taken at the moment"}, 503, {"Retry-After": "5"})


app = FastAPI(lifespan=lifespan)
app.add_exception_handler(aiodq.MessageSizeError, too_large)
for refusal in (aiodq.QueueShutDown, aiodq.QueueFull, aiodq.StorageError):
    app.add_exception_handler(refusal, unavailable)


@app.post("/orders", status_code=202)
async def place(request: Request) -> dict[str, int]:
    """Take an order: it is on disk when the client reads 202."""
    offset: int = await request.app.state.orders.put(await request.body())
    return {"order": offset, "worker": os.getpid()}


@app.get("/stats")
async def stats(request: Request) -> dict[str, int]:
    """Say how much is to be done, whichever worker is asked."""
    orders: aiodq.Queue = request.app.state.orders
    await orders.refresh()
    return {"depth": orders.depth, "worker": os.getpid()}
