"""Workers as Celery or gunicorn has them: forked processes that share one queue, each of which may be killed.

    python examples/blocking_prefork.py DIRECTORY [WORKERS]

Each worker opens the queue after the fork, in mode "shared": one of them owns it and serves the others, and when it
dies another takes over. A worker that dies is replaced; what it had in hand comes again. Ctrl-C or SIGTERM ends all.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import aiodq.sync

if TYPE_CHECKING:
    from types import FrameType


def work(job: aiodq.sync.Message) -> None:
    """Do the work."""
    print(f"{os.getpid()} did {job.body.decode()}\n", end="", flush=True)  # in one piece, as others print, too


def worker(directory: str) -> None:
    """Work jobs off until SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of them; it is for the parent to end its workers
    with aiodq.sync.open_queue(directory, mode="shared") as jobs:
        # A signal's handler may interrupt this very thread in a call, so the gentle end is asked for by another.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=jobs.stop).start())
        jobs.consume(work, concurrency=2)


class Parent:
    """Keeps its workers running."""

    def __init__(self, directory: str, number: int) -> None:
        """Start so many."""
        self.directory = directory
        self.ending = False
        self.workers = [self.start() for _ in range(number)]

    def start(self) -> multiprocessing.context.ForkProcess:
        """Start a worker. The parent has nothing open that it could inherit."""
        process = multiprocessing.get_context("fork").Process(target=worker, args=(self.directory,))
        process.start()
        return process

    def watch(self) -> None:
        """Replace workers that die, until the end."""
        while not self.ending:
            done = multiprocessing.connection.wait([each.sentinel for each in self.workers], timeout=1)
            if done and not self.ending:
                self.workers = [each if each.is_alive() else self.start() for each in self.workers]
        for each in self.workers:
            while each.is_alive():  # one that has just been forked has the parent's handler still, and needs another
                each.terminate()
                each.join(1)

    def end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        """Stop replacing them."""
        self.ending = True


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: blocking_prefork.py DIRECTORY [WORKERS]")
    parent = Parent(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 4)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, parent.end)
    parent.watch()
