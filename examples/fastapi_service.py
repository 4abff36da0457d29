"""Background jobs of a web service: quick ones, slow ones, ones that fail, hang, or take the process down with them.

    pip install 'aiodq[fastapi]'
    python examples/fastapi_service.py --store jobs.aiodq --port 8000

    curl -i localhost:8000/jobs -H 'content-type: application/json' -d '{"kind": "mail", "argument": "ann@example.org"}'
    curl localhost:8000/dead
    curl localhost:8000/health

A job that was answered with 202 is done, or it is given up for a reason that `/dead` tells, however often the process
is stopped or killed meanwhile. What starts processes on your machine (systemd, Docker, Kubernetes) has to do so again.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import aiodq

DEAD = "jobs.dead"
RETRYING = aiodq.ChannelOptions(max_attempts=5, backoff=aiodq.Backoff(first=1, factor=2, limit=300), dead_letter=DEAD)
LARGEST_JOB = 64 * 1024
GRACE = 10.0
"""Seconds that jobs in hand have at SIGTERM."""

MOST_SHOWN = 100

log = logging.getLogger("jobs")
router = APIRouter()


class Job(BaseModel):
    """What a client sends. Anything else is answered with 422."""

    # With a bound, pydantic also refuses text that is no Unicode, which JSON can write, and nothing can encode.
    kind: str = Field(min_length=1)
    argument: str = Field(min_length=1)


class Lane(NamedTuple):
    """Jobs that share workers. What takes long has a lane of its own, so that it holds up nothing that does not."""

    topic: str
    workers: int
    timeout: float


class Kind(NamedTuple):
    """A kind of job."""

    function: Callable[[str], Awaitable[None]]
    lane: Lane


QUICK = Lane("jobs.quick", workers=8, timeout=30)
SLOW = Lane("jobs.slow", workers=4, timeout=3600)
LANES = (QUICK, SLOW)
KINDS: dict[str, Kind] = {}


def kind(
    name: str, lane: Lane = QUICK
) -> Callable[[Callable[[str], Awaitable[None]]], Callable[[str], Awaitable[None]]]:
    """Let a function work off jobs of that kind."""

    def register(function: Callable[[str], Awaitable[None]]) -> Callable[[str], Awaitable[None]]:
        KINDS[name] = Kind(function, lane)
        return function

    return register


@kind("mail")
async def send_mail(address: str) -> None:
    """Send a mail, or give it up at once where that is no use."""
    if "@" not in address:
        raise aiodq.Reject(f"{address!r} is no address")
    await asyncio.sleep(0.01)


@kind("report", SLOW)
async def write_report(name: str) -> None:
    """Write a report, in a thread, as that is work for the processor."""
    await asyncio.to_thread(sorted, name * 1000)


async def work(message: aiodq.Message) -> None:
    """Work off one job: done when this returns, tried again later if it raises."""
    job = Job.model_validate_json(message.body)
    if job.kind not in KINDS:
        raise aiodq.Reject(f"nobody does {job.kind!r}")
    await KINDS[job.kind].function(job.argument)


@router.post("/jobs", status_code=202)
async def accept(job: Job, request: Request) -> dict[str, str]:
    """Answer 202 once the job is on disk."""
    lane = KINDS[job.kind].lane if job.kind in KINDS else QUICK
    queue: aiodq.Queue = request.app.state.queues[lane]
    offset = await queue.put(job.model_dump_json().encode())
    return {"id": f"{lane.topic}/{offset}"}


@router.get("/dead")
async def dead(request: Request) -> list[dict[str, Any]]:
    """Show the latest of the jobs that were given up, and why."""
    store: aiodq.Store = request.app.state.store
    shown: list[dict[str, Any]] = []
    async for letter in store.topic(DEAD).scan(reverse=True):
        why = {name.removeprefix("aiodq-"): text for name, text in letter.headers.items() if name.startswith("aiodq-")}
        shown.append({"job": letter.body.decode(errors="replace"), **why})
        if len(shown) == MOST_SHOWN:
            break
    return shown


def named(stats: aiodq.ChannelStats) -> dict[str, Any]:
    """Return stats for JSON, in which a latency would be a list otherwise."""
    return {
        name: value._asdict() if isinstance(value, aiodq.Latency) else value for name, value in asdict(stats).items()
    }


@router.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    """Show what is waiting and what was done since the start, by lane."""
    return {lane.topic: named(queue.stats()) for lane, queue in request.app.state.queues.items()}


@router.get("/health")
async def health(request: Request, response: Response) -> dict[str, Any]:
    """Answer 200 if jobs can be taken and are done in time, else 503 and why not."""
    found = request.app.state.store.health()
    response.status_code = 200 if found.ok else 503
    return asdict(found)


async def malformed(_: Request, error: Exception) -> JSONResponse:
    """Answer what is no job. FastAPI's own answer repeats the value, which may be none that JSON has (NaN)."""
    errors = error.errors() if isinstance(error, RequestValidationError) else ()
    return JSONResponse({"detail": [{name: each[name] for name in ("type", "loc", "msg")} for each in errors]}, 422)


async def too_large(_: Request, error: Exception) -> JSONResponse:
    """Answer a job that the queue does not take. A proxy in front should bound the request's body, too."""
    return JSONResponse({"detail": str(error)}, 413)


async def unavailable(_: Request, error: Exception) -> JSONResponse:
    """Answer a job that is not promised: shutting down, no space, or the disk failed. The client may try again."""
    log.warning("job refused: %s", error)
    return JSONResponse({"detail": "no jobs are taken at the moment"}, 503, {"Retry-After": "5"})


def stop_if_failed(consuming: asyncio.Task[None]) -> None:
    """Shut the service down when the store has failed: it heals only by being opened again."""
    if not consuming.cancelled() and (error := consuming.exception()) is not None:
        log.critical("no job is worked off any more", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


def create_app(path: Path) -> FastAPI:
    """Return the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with aiodq.open(path, aiodq.StoreOptions(max_message_bytes=LARGEST_JOB)) as store:
            queues = {lane: store.queue(lane.topic, RETRYING) for lane in LANES}
            app.state.store, app.state.queues = store, queues
            consuming = [
                asyncio.create_task(queue.consume(work, concurrency=lane.workers, timeout=lane.timeout))
                for lane, queue in queues.items()
            ]
            for task in consuming:
                task.add_done_callback(stop_if_failed)
            yield
            await store.stop(GRACE)  # nothing new; jobs in hand are done, or go back after the grace
            await asyncio.wait(consuming)

    app = FastAPI(title="Jobs", lifespan=lifespan)
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(aiodq.MessageSizeError, too_large)
    for error in (aiodq.QueueShutDown, aiodq.QueueFull, aiodq.StorageError):
        app.add_exception_handler(error, unavailable)
    return app


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description="Take jobs and work them off, losing none.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--store", type=Path, default=Path("jobs.aiodq"), help="the directory of the queues")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Having shut down, uvicorn raises the signal again for the handler that was there before: an orderly end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(create_app(args.store), host=args.host, port=args.port, access_log=False)


if __name__ == "__main__":
    main()
