"""The blocking client where gevent has replaced threads by greenlets, as in `gunicorn -k gevent`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import WATCHDOG, environment

if TYPE_CHECKING:
    from pathlib import Path

# There are no wheels of gevent for each version of Python when it comes out.
pytest.importorskip("gevent", reason="gevent is not installed")

_PROGRAM = """
import os, signal, sys
import gevent
from gevent import monkey

path, mode, early = sys.argv[1:]
if early == "imported":
    import aiodq.sync
monkey.patch_all()
import aiodq, aiodq.sync

turns = 0

def others():
    global turns
    while True:
        gevent.sleep(0.001)
        turns += 1

gevent.spawn(others)
with aiodq.sync.open(path, mode=mode) as store:
    jobs = store.queue("jobs")
    gevent.joinall([gevent.spawn(jobs.put, b"x") for _ in range(50)], raise_error=True)
    print("put", jobs.put(b"last"))
    try:
        aiodq.sync.open(path + "2")
    except aiodq.WrongContextError as error:
        print(error)
    with store.transaction() as transaction:
        transaction.put("done", b"y")
        with jobs.get():
            pass
    waiting, before = gevent.spawn(store.queue("later").get), turns
    gevent.sleep(0.05)
    print("waits", waiting.ready(), turns > before)
    store.queue("later").put(b"z")
    with waiting.get(timeout=30) as late:
        print("late", late.body)
    try:
        with gevent.Timeout(0.05):
            store.queue("none").get()
    except gevent.Timeout:
        print("timed out")
    gevent.signal_handler(signal.SIGUSR1, jobs.put, b"signal")
    os.kill(os.getpid(), signal.SIGUSR1)
    handled = []

    def handle(message):
        gevent.sleep(0.001)
        handled.append(message.body)

    consuming = gevent.spawn(jobs.consume, handle, concurrency=4)
    while len(handled) < 51:
        gevent.sleep(0.001)
    store.stop()
    consuming.get(timeout=30)
    print("consumed", len(handled))
with aiodq.sync.open(path, mode=mode) as store:
    print("again", store.queue("jobs").depth, store.queue("done").get().body)
left = aiodq.sync.open(path, mode=mode)
print("left", left.queue("jobs").put(b"x"))
"""


@pytest.mark.parametrize(("mode", "early"), [("exclusive", "patched"), ("shared", "imported")])
def test_greenlets_share_a_store_and_leave_each_other_turns(tmp_path: Path, mode: str, early: str) -> None:
    """With `gunicorn --preload`, the program imports everything before gevent replaces threads."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", _PROGRAM, str(tmp_path / "s"), mode, early],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    put, refused, *told = done.stdout.splitlines()
    assert put == "put 50"
    assert "threads are greenlets here" in refused
    assert told == [
        "waits False True",
        "late b'z'",
        "timed out",
        "consumed 51",
        "again 0 b'y'",
        "left 52",
    ]
    assert "store was never closed" in done.stderr
    assert "Traceback" not in done.stderr


_PARTLY = """
import sys
import gevent
from gevent import monkey

path, mode, patched = sys.argv[1:]
eval("monkey." + patched)
import aiodq, aiodq.sync

try:
    with aiodq.sync.open(path, mode=mode) as store:
        jobs = store.queue("jobs")
        gevent.joinall([gevent.spawn(jobs.put, b"x") for _ in range(5)], raise_error=True)
        print("got", [jobs.get().body for _ in range(3)])
except aiodq.WrongContextError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("mode", "patched", "told"),
    [
        ("exclusive", "patch_all(thread=False)", "got [b'x', b'x', b'x']"),
        ("shared", "patch_all(thread=False)", "got [b'x', b'x', b'x']"),
        ("exclusive", "patch_all(select=False)", "select still waits in the system"),
        ("shared", "patch_all(queue=False)", "queue still waits in the system"),
    ],
)
def test_where_gevent_has_replaced_a_part_it_works_or_says_what_is_missing(
    tmp_path: Path, mode: str, patched: str, told: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARTLY, str(tmp_path / "s"), mode, patched],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert told in done.stdout
