"""One local Spark session for all tests."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from aiodq.spark.java import prepare
from tests.spark.clusters import BRISK, make_home
from tests.spark.nursery import nursery

if TYPE_CHECKING:
    from collections.abc import Iterator


HERE = Path(__file__).parent

for _options in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_options, BRISK)  # what tests start inherits it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what may be the first to use Spark the time that it takes to start."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session with two threads, whose Python workers find this checkout."""
    environment = dict(os.environ)
    prepare("local[2]")
    place = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_HOME"] = str(make_home(place / "home"))
    with nursery() as python:
        os.environ["PYSPARK_PYTHON"] = python
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.warehouse.dir", str(place / "warehouse"))
            .config("spark.local.dir", str(place))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        os.environ["PYSPARK_PYTHON"] = sys.executable  # what other Spark's processes run, which tests start
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """Let this process and its session be where it is another day than in UTC."""
    zone = "Etc/GMT+12" if datetime.now(UTC).hour < 12 else "Etc/GMT-14"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        spark.conf.set("spark.sql.session.timeZone", zone)
        yield
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
