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


def want_of_strace() -> str:
    """Return why there is no strace, or nothing, having installed it where this user may."""
    if shutil.which("strace") is not None:
        return ""
    if sys.platform != "linux":
        return "it is a program for Linux"
    if shutil.which("apt-get") is None:
        return "it has to be installed by hand where there is no apt-get"
    if os.geteuid() != 0:
        return "only root may install it"
    environment, told = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, ""
    # Of the processes that share a run, one does it.
    with FileLock(Path(tempfile.gettempdir()) / "aiodq-tests-apt.lock"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "strace"]):
            if shutil.which("strace") is None:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=100, check=False
                )
                told = f"apt-get could not install it: {done.stderr.strip()}"
    return "" if shutil.which("strace") is not None else told


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Return the process that forks those that work."""
    process = Zygote(tmp_path_factory.mktemp("zygote"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def traced(zygote: Zygote) -> Zygote:
    """Return the same, where what it forks can be traced."""
    if want := want_of_strace():
        # Only the kernel can fail a real call, and only a tracer can tell it to; tests/proof fails the simulated ones.
        pytest.skip(f"needs strace, by which the kernel fails a call, and it is no package of pip's: {want}")
    if zygote.run("mixed", 1, 1, calls="fdatasync").code != 0:
        complaint = zygote.complaints()
        assert "ptrace" in complaint, complaint
        # A container's seccomp profile or Yama decides that, and nothing in a test can change it.
        pytest.skip(f"needs ptrace, which the kernel refuses to strace here: {complaint.splitlines()[-1]}")
    return zygote
