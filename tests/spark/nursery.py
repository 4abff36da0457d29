"""Spark's Python processes, forked off one that has imported what they import: most of a short one's life else.

`nursery` gives a program that Spark takes for Python. It hands what it was started with to the process that has
imported everything (`main` here), which forks one that runs it; and ends as that one does.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from tests.processes import ROOT, kill_group

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES: Final = (
    "aiodq.spark.pipelines",
    "encodings.idna",
    "pyarrow.pandas_compat",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)
"""What imports nearly all that Spark's processes import. A module that is missing in a version of Spark is left out."""

PROGRAM: Final = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"x"], [0, 1, 2])
server.sendall(json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode() + b"\\n")
answer = server.recv(99)
sys.exit(int(answer) if answer else 1)
"""


@contextmanager
def nursery() -> Iterator[str]:
    """Give the path of a program that does what Python does with `-m`, sooner."""
    with tempfile.TemporaryDirectory(prefix="aiodq-") as place:  # a socket's path has to be short
        yield from _serve(Path(place))


def _serve(place: Path) -> Iterator[str]:
    address, program = place / "nursery", place / "python"
    program.write_text(PROGRAM.format(python=sys.executable, address=str(address)))
    program.chmod(0o700)
    # Spark has all its Python processes hash alike.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.spark.nursery", str(address)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield str(program)
        finally:
            kill_group(server)


def main(address: str) -> None:
    """Fork a process for each program that is connected, until this one is killed, or whoever started it is gone."""
    for name in MODULES:
        with suppress(ModuleNotFoundError):
            import_module(name)
    assert threading.active_count() == 1
    gc.freeze()  # a worker looks for garbage behind each task
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who is forked here is not waited for
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        print("ready", flush=True)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            client, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                attend(client)
            client.close()


def attend(client: socket.socket) -> NoReturn:
    """Run what a program is to run in a process of its own; end that with the program, and the program with that."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, *_ = socket.recv_fds(client, 1, 3)
    with client.makefile("rb") as asked:
        words, environment, place = json.loads(asked.readline())
    child = os.fork()
    if child == 0:
        client.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        become(words, environment, place)
    for file in (*files, 1):
        os.close(file)
    threading.Thread(target=end_with, args=(client, child), daemon=True).start()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    client.sendall(b"%d" % (code if code >= 0 else 128 - code))
    os._exit(0)


def end_with(client: socket.socket, child: int) -> None:
    """End a process once the program for which it runs has ended."""
    client.recv(1)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def become(words: list[str], environment: dict[str, str], place: str) -> NoReturn:
    """Do what Python does with a module, and end."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    sys.argv = words
    code = 0
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - it is told as Python does, and ends this process
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 255)


if __name__ == "__main__":
    main(*sys.argv[1:])
