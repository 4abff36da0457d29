"""Segments in S3, as moto's server plays it: what fsspec's own file systems cannot tell of a real one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec.config
import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

import aiodq
from aiodq.spark.objects import find_objects
from aiodq.spark.pipelines.ship import MANIFEST, ship
from tests.cli.support import ok
from tests.spark.clusters import environment
from tests.spark.support import fill, read, scanned
from tests.storage.logs import segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of a place in a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://{host}:{port}"})
    monkeypatch.setenv("FSSPEC_S3_ENDPOINT_URL", f"http://{host}:{port}")  # for other processes
    name = f"lake-{uuid4()}"  # what one server has, another one of this process has, too
    fsspec.filesystem("s3").mkdir(name)
    yield f"s3://{name}/shop"
    fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


def sealed(store: Path) -> list[dict[str, Any]]:
    """Return the rows that are in sealed segments: all but those of the last one."""
    last = int(segments(store / "orders")[-1].stem)
    return [row for row in scanned(store) if row["offset"] < last]


def test_what_is_shipped_is_read_as_the_store_is(tmp_path: Path, bucket: str) -> None:
    asyncio.run(fill(tmp_path, segment_bytes=2000))
    assert ship(tmp_path, bucket).rows == len(sealed(tmp_path)) > 0
    assert ship(tmp_path, bucket).segments == 0
    asyncio.run(fill(tmp_path, segment_bytes=2000))
    assert ship(tmp_path, bucket).segments > 0
    assert read(bucket, splitBytes="1k") == sealed(tmp_path)
    with pytest.raises(aiodq.StoreNotFoundError):
        read(f"{bucket}-that-is-not-there")


def test_an_object_that_is_there_is_not_written_over(tmp_path: Path, bucket: str) -> None:
    """It is made on the condition that there is none: by S3 itself, not by a look before."""
    asyncio.run(fill(tmp_path, segment_bytes=2000))
    ship(tmp_path, bucket)
    fs, place = find_objects(f"{bucket}/orders")
    name = segments(tmp_path / "orders")[0].name
    fs.rm_file(f"{place}/{MANIFEST}")
    fs.pipe_file(f"{place}/{name}", b"somebody's")
    with pytest.raises(aiodq.InvalidOptionError, match="something else"):
        ship(tmp_path, bucket)
    assert fs.cat_file(f"{place}/{name}") == b"somebody's"


def test_a_bucket_that_is_not_there_is_not_made(tmp_path: Path, bucket: str) -> None:
    asyncio.run(fill(tmp_path, segment_bytes=2000))
    misspelt = bucket.replace("lake-", "lakes-")
    with pytest.raises(aiodq.StoreNotFoundError, match="bucket does not exist"):
        ship(tmp_path, misspelt)
    assert not fsspec.filesystem("s3").exists(misspelt.removesuffix("/shop"))


def test_commands_ship_and_spark_s_workers_read(
    tmp_path: Path, bucket: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session that is there, whose Java knows nothing of this server: its workers are told of it."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    for name, value in os.environ.items():
        if name.startswith(("AWS_", "FSSPEC_")):
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
    ships_and_reads(tmp_path, bucket, lambda *words: ok("spark", *words).out.decode())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commands_ship_and_read_in_processes_of_their_own(tmp_path: Path, bucket: str) -> None:
    ships_and_reads(tmp_path, bucket, command)


def ships_and_reads(path: Path, bucket: str, command: Callable[..., str]) -> None:
    store = path / "store"
    asyncio.run(fill(store, segment_bytes=2000))
    assert command("archive", store, bucket, "--segments").startswith("shipped ")
    count = command("query", bucket, "SELECT count(*) AS n, sum(length(body)) AS size FROM orders", "--output", "json")
    assert json.loads(count) == {"n": len(sealed(store)), "size": sum(len(row["body"]) for row in sealed(store))}
    assert f"{len(sealed(store))} messages, " in command("audit", bucket)


def command(*words: object) -> str:
    """Return what a command prints, in a process of its own, which is to succeed."""
    asked = [sys.executable, "-m", "aiodq.cli", "spark", *map(str, words)]
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
