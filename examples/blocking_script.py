"""A script without asyncio: put the lines of some files, work them off in threads, stop with Ctrl-C, run it again.

    python examples/blocking_script.py DIRECTORY [FILE...]

What was interrupted comes again at the next run; what was acked does not.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import aiodq.sync

if TYPE_CHECKING:
    from types import FrameType


def count(job: aiodq.sync.Message) -> None:
    """Do the work: here, count words."""
    print(f"{len(job.body.split())} words: {job.body.decode()}\n", end="")  # in one piece, as others print, too


def main(directory: str, files: list[str]) -> None:
    """Put what is to be done, and do it with four threads until nothing is left."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        # A signal's handler may interrupt this very thread in a call, so the gentle end is asked for by another.
        threading.Thread(target=jobs.stop).start()

    with aiodq.sync.open_queue(directory) as jobs:
        signal.signal(signal.SIGTERM, stop)
        try:
            for file in files:
                print(f"put {len(jobs.put_many(Path(file).read_bytes().splitlines()))} lines of {file}", flush=True)
            jobs.shutdown()  # no more puts: `consume` returns once nothing is left
            jobs.consume(count, concurrency=4)
        except KeyboardInterrupt:
            print(f"interrupted, {jobs.depth} lines left")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: blocking_script.py DIRECTORY [FILE...]")
    main(sys.argv[1], sys.argv[2:])
