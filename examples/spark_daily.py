"""Events come in through FastAPI and are counted by day with Spark, out of the same store, beside the running service.

    pip install 'aiodq[fastapi,spark]'
    python examples/spark_daily.py serve --store events.aiodq --port 8000
    curl localhost:8000/events -H 'content-type: application/json' -d '{"kind": "signup", "user": "ada"}'
    python examples/spark_daily.py report --store events.aiodq --target daily

An event that was answered with 202 is on disk. Each run of `report` archives what came since the last one, every event
once, and writes the number of events by day and kind to Parquet. The store is no queue here: nobody consumes, and what
is older than a month is deleted, unless it is still to be archived.
"""

import argparse
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

import uvicorn
from fastapi import Body, FastAPI
from pyspark.sql import SparkSession

import aiodq
from aiodq.spark.pipelines import archive, start_session

OPTIONS = aiodq.StoreOptions(retention=aiodq.Retention(consumed="keep", max_age=timedelta(days=31)))


def create_app(store: str) -> FastAPI:
    """Return an application that stores what it is sent."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with aiodq.open(store, OPTIONS) as opened:
            app.state.events = opened.topic("events")
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/events", status_code=202)
    async def accept(event: Annotated[dict[str, str], Body()]) -> dict[str, int]:
        return {"offset": await app.state.events.put(json.dumps(event).encode(), tag=event.get("kind"))}

    return app


def count(spark: SparkSession, target: str) -> None:
    """Count what is archived by day and kind, write and print the counts."""
    counts = spark.read.parquet(f"{target}/events").groupBy("date", "tag").count().orderBy("date", "tag")
    counts.write.mode("overwrite").parquet(f"{target}/counts")
    for row in spark.read.parquet(f"{target}/counts").orderBy("date", "tag").collect():
        print(f"{row['date']} {row['tag']}: {row['count']}")


def report(store: str, target: str) -> None:
    """Archive what is new, count all there is."""
    spark = start_session("local[2]", {"spark.sql.shuffle.partitions": "2"})
    # All topics: before the first event there is none, which would be an error for one that is named.
    done = archive(spark, store, f"{target}/events")
    print(f"archived {done.rows} events")
    if os.path.isdir(f"{target}/events/topic=events"):
        count(spark, target)
    spark.stop()


def main() -> None:
    """Serve, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["serve", "report"])
    parser.add_argument("--store", default="events.aiodq")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--target", default="daily")
    given = parser.parse_args()
    if given.what == "serve":
        uvicorn.run(create_app(given.store), port=given.port)
    else:
        report(given.store, given.target)


if __name__ == "__main__":
    main()
