"""The process that works under strace, and the means to have strace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from tests.real.support import Zygote

if TYPE_CHECKING:
    from collections.abc import Iterator


def strace_is_there() -> bool:
    """Return whether there is a strace, having installed it where that is easy."""
    if shutil.which("strace") is None and sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        # Of the processes that share a run, one does it.
        with FileLock(Path(tempfile.gettempdir()) / "aiodq-tests-apt.lock"):
            for command in (["apt-get", "update"], ["apt-get", "install", "-y", "strace"]):
                if shutil.which("strace") is None:
                    subprocess.run(command, env=environment, capture_output=True, timeout=100, check=False)
    return shutil.which("strace") is not None


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Return the process that forks those that work."""
    process = Zygote(tmp_path_factory.mktemp("zygote"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def traced(zygote: Zygote) -> Zygote:
    """Return the same, where what it forks can be traced."""
    if not strace_is_there():
        # Only the kernel can fail a real call, and only a tracer can tell it to; tests/proof fails the simulated ones.
        pytest.skip("strace is a program of the system that pip cannot bring, and apt could not install it here")
    if zygote.run("mixed", 1, 1, calls="fdatasync").code != 0:
        complaint = zygote.complaints().splitlines()[-1]
        # A container's seccomp profile or Yama decides that, and nothing in a test can change it.
        pytest.skip(f"the kernel does not let this user trace its own processes: {complaint}")
    return zygote
