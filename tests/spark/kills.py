"""Kills Spark in the middle of its work, again and again; what it carried is there once.

`python -m tests.spark.kills [--way copy|out|in] [--who driver|workers] [--cluster] [--owned] [--kills 50] [--seed N]`
does as many as one asks for; the tests beside it a few.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

import aiodq
from aiodq.storage.bulk.commits import STAGING
from aiodq.storage.io.filesystem import OsFileSystem
from aiodq.storage.offline.verify import verify_store
from tests.processes import kill_one, killed_at_last
from tests.spark.clusters import cluster, environment
from tests.spark.support import KEEP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAYS: Final = ("copy", "out", "in")
"""From store to store, from a store to Parquet, from Parquet to a store."""
WHO: Final = ("driver", "workers")
"""Spark's driver with its JVM, whose Python workers are left to themselves; or Python processes that Spark started,
the driver being left alone."""
PROCESSES: Final = Path("/proc")
"""Where Linux tells of processes; elsewhere no workers are found."""
WATCHDOG: Final = 300.0
"""Seconds after which a run is taken for hanging."""
_TOGETHER: Final = 60
_BATCHES: Final = 10
_SECONDS_A_BATCH: Final = 0.4
"""A batch takes longer, mostly: so a run is killed before it has done all that waits for it."""


@dataclass
class Carrying:
    """Something to be carried, and what became of the runs that were to carry it.

    Attributes:
        path: where everything is.
        way, who: as above.
        master: Spark's.
        roots: the workers of a cluster, whose Python processes are killed, too.
        batches: so many wait for a run.
        put: how many messages there are to carry by now.
        kills: how many processes were killed so far.
        amid: at how many of them a batch was begun, and not done.
        broken: how many runs ended by themselves because of a kill.
    """

    path: Path
    way: str
    who: str
    rng: random.Random
    master: str = "local[2,1000]"
    roots: Sequence[int] = ()
    batches: int = _BATCHES
    put: int = field(default=0, init=False)
    kills: int = field(default=0, init=False)
    amid: int = field(default=0, init=False)
    broken: int = field(default=0, init=False)

    def carry(self, kills: int) -> None:
        """Run until so many were killed, and one run has come to its end."""
        done = False
        while self.kills < kills:
            self._feed()
            with self._run() as child:
                if self.who == "driver":
                    self._kill_driver(child)
                else:
                    self._kill_workers(child, kills)
            done = child.returncode == 0
        if not done:
            with self._run() as child:
                assert child.wait(WATCHDOG) == 0, self._log()

    def __str__(self) -> str:
        where = "a cluster of 1 + 2" if self.roots else self.master
        told = f"{self.way}, {self.who}, {where}: {self.kills} kills, {self.amid} of them amid a batch"
        return f"{told}; {self.broken} runs broken off by one; all of {self.put} messages once"

    # --- a run

    @contextmanager
    def _run(self) -> Iterator[subprocess.Popen[str]]:
        """Start one; it is ready when its query is about to start."""
        places = [str(self.path / name) for name in ("source", "target", "checkpoint")]
        command = [sys.executable, "-m", "tests.spark.child", self.way, self.master, *places]
        # A Java that is killed leaves what it has there.
        (self.path / "tmp").mkdir(exist_ok=True)
        options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={self.path / 'tmp'}"
        with (self.path / "log").open("wb") as log:
            out, env = subprocess.PIPE, {**environment(), "SPARK_SUBMIT_OPTS": options}
            with killed_at_last(command, env=env, stdout=out, stderr=log, text=True, group=True) as child:
                yield child

    def _kill_driver(self, child: subprocess.Popen[str]) -> None:
        self._await_batch(child)
        with suppress(subprocess.TimeoutExpired):
            child.wait(self.rng.uniform(0, self.batches * _SECONDS_A_BATCH))
        if child.poll() is None:
            self._count()
        else:
            assert child.returncode == 0, self._log()

    def _kill_workers(self, child: subprocess.Popen[str], kills: int) -> None:
        self._await_batch(child)
        end = time.monotonic() + WATCHDOG
        while child.poll() is None:
            assert time.monotonic() < end, self._log()
            time.sleep(self.rng.uniform(0.05, 1))
            found = sorted(pid for root in (child.pid, *self.roots) for pid in python_workers(root))
            if found and self.kills < kills and child.poll() is None and kill_one(self.rng.choice(found)):
                self._count()
        if child.returncode:
            # It was one of those that the driver itself cannot do without. No error is of aiodq's making.
            self.broken += 1
            assert "aiodq.errors." not in self._log(), self._log()

    def _await_batch(self, child: subprocess.Popen[str]) -> None:
        """Wait until it has begun or done a batch, or not so long; or until it has ended."""
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", self._log()
        logs = [self.path / "checkpoint" / name for name in ("offsets", "commits")]
        before, end = list(map(_newest, logs)), time.monotonic() + self.rng.uniform(2, 30)
        while child.poll() is None and list(map(_newest, logs)) == before and time.monotonic() < end:
            time.sleep(0.02)

    def _count(self) -> None:
        self.kills += 1
        self.amid += _newest(self.path / "checkpoint" / "offsets") > _newest(self.path / "checkpoint" / "commits")

    def _log(self) -> str:
        return (self.path / "log").read_text(errors="replace")

    # --- what is carried

    def _feed(self) -> None:
        """Put as much as was carried since the last time."""
        enough = self._taken() + self.batches * _TOGETHER
        bodies = [b"%d" % number for number in range(self.put, max(enough, self.put))]
        self.put += len(bodies)
        if self.way != "in":
            asyncio.run(put(self.path / "source", bodies))
            return
        (self.path / "source").mkdir(exist_ok=True)
        for at in range(0, len(bodies), _TOGETHER):
            table = pa.table({"body": pa.array(bodies[at : at + _TOGETHER], pa.binary())})
            pq.write_table(table, self.path / "source" / f"{int(bodies[at]):09}.parquet")

    def _taken(self) -> int:
        """Return how many messages the query has taken in, as its checkpoint says."""
        offsets = self.path / "checkpoint" / "offsets"
        newest = _newest(offsets)
        if newest < 0:
            return 0
        said = json.loads((offsets / str(newest)).read_text().splitlines()[-1])
        return (int(said["logOffset"]) + 1) * _TOGETHER if self.way == "in" else int(said["topics"].get("orders", 0))

    def check(self) -> None:
        """Make sure that what was carried is there, once. Nobody owns the store that was written."""
        target = self.path / "target"
        if self.way == "out":
            found = list(written(target))
        else:
            asyncio.run(_opened(target))
            found = [message.body for message in aiodq.open_reader(target).topic("orders").scan()]
            assert verify_store(str(target), OsFileSystem()).ok
            assert not [left for left in (target / STAGING).rglob("*") if left.is_file()]
        wrong = Counter(found)
        wrong.subtract(b"%d" % number for number in range(self.put))
        assert not {body: count for body, count in wrong.items() if count}, f"missing or twice: {self}"
        if self.way == "copy":
            assert [int(body) for body in found] == list(range(self.put)), "in their order"


def _newest(log: Path) -> int:
    """Return the number of the newest batch in a log of Spark's; -1 where there is none."""
    return max((int(found.name) for found in log.glob("*") if found.name.isdecimal()), default=-1)


def written(target: Path) -> Iterator[bytes]:
    """Yield what a stream has written to Parquet for good: its log says which files count."""
    log = target / "_spark_metadata"
    compacted = max((int(found.stem) for found in log.glob("*.compact")), default=-1)
    names = [f"{compacted}.compact"] if compacted >= 0 else []
    names += map(str, range(compacted + 1, _newest(log) + 1))
    for name in names:
        for line in (log / name).read_text().splitlines()[1:]:
            yield from pq.read_table(unquote(urlparse(json.loads(line)["path"]).path))["body"].to_pylist()


def python_workers(root: int) -> Iterator[int]:
    """Yield the Python processes below a process that Spark has started: its daemons, and what they forked."""
    children: dict[int, list[int]] = {}
    for place in PROCESSES.glob("[0-9]*"):
        with suppress(OSError):
            # The name before may have spaces and brackets in it.
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(place.name))

    def below(pid: int) -> Iterator[int]:
        for child in children.get(pid, ()):
            yield child
            yield from below(child)

    for pid in below(root):
        with suppress(OSError):
            command = (PROCESSES / str(pid) / "cmdline").read_bytes().split(b"\0")
            if any(part.startswith(b"pyspark.") for part in command):
                yield pid


async def put(path: Path, bodies: Sequence[bytes]) -> None:
    """Put into the topic that is carried."""
    async with aiodq.open(path, aiodq.StoreOptions(segment_bytes=20_000, retention=KEEP)) as store:
        for at in range(0, len(bodies), 50):
            await store.topic("orders").put_many(bodies[at : at + 50])


async def _opened(path: Path) -> None:
    async with aiodq.open(path):
        pass


def carry(
    path: Path, way: str, who: str, seed: int, kills: int, *, owned: bool, clustered: bool, batches: int = _BATCHES
) -> Carrying:
    """Carry messages through so many kills, in a new place; with `owned` beside an owner of the store that is written.

    Raises:
        AssertionError: something is missing, or twice, or a run ended as it should not.
    """
    path.mkdir()
    with ExitStack() as running:
        job = Carrying(path, way, who, random.Random(seed), batches=batches)
        if clustered:
            started = running.enter_context(cluster(path, (), ()))
            job.master, job.roots = started.url, started.workers
        if owned and way != "out":
            asyncio.run(_beside_an_owner(job, kills))
        else:
            job.carry(kills)
        job.check()
    return job


async def _beside_an_owner(job: Carrying, kills: int) -> None:
    async with aiodq.open(job.path / "target"):
        await asyncio.to_thread(job.carry, kills)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, a few kills in each place."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    add = parser.add_argument
    add("--way", choices=WAYS, action="append", help="may be repeated; by default all")
    add("--who", choices=WHO, action="append", help="may be repeated; by default both")
    add("--cluster", action="store_true", help="on a master and two workers, instead of in one process")
    add("--owned", action="store_true", help="beside an owner of the store that is written")
    add("--kills", type=int, default=50, help="of each (default: %(default)s)")
    add("--seed", type=int, default=random.SystemRandom().getrandbits(32), help="repeats a run, as far as time does")
    arguments = parser.parse_args(argv)
    print("seed", arguments.seed, flush=True)
    for way in arguments.way or WAYS:
        for who in arguments.who or WHO:
            with tempfile.TemporaryDirectory(prefix="aiodq-kills-") as place:
                how = {"owned": arguments.owned, "clustered": arguments.cluster}
                print(carry(Path(place) / "run", way, who, arguments.seed, arguments.kills, **how), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
