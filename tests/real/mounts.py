"""File systems of their own for a test, taken away again whatever becomes of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["bound_read_only", "small_disk"]


def _call(*command: str) -> str:
    """Run a command; return what it says where it fails."""
    program = shutil.which(command[0])
    if program is None:
        return f"there is no {command[0]}"
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _skip_if_refused(problem: str, what: str) -> None:
    """Skip where it is the kernel that refuses; any other problem is one of the test."""
    if problem:
        assert re.search("permission denied|not permitted|superuser|there is no", problem, re.IGNORECASE), problem
        pytest.skip(f"needs to {what}, which is refused to this root: {problem}")


@contextmanager
def _mounted(path: Path, *options: str) -> Iterator[Path]:
    if sys.platform != "linux" or os.geteuid() != 0:
        # Filling or write-protecting the machine's own disk instead would harm whoever runs this.
        pytest.skip("needs a small or a read-only file system, and only root may mount one, on Linux")
    path.mkdir(exist_ok=True)
    # Root without CAP_SYS_ADMIN, as in most containers, may not.
    _skip_if_refused(_call("mount", *options, str(path)), "mount anything")
    try:
        yield path
    finally:
        # Detached, it goes as soon as what a failed test has open is closed.
        problem = _call("umount", "--lazy", str(path))
        assert not problem, problem


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory that holds so much."""
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size},mode=0700", "none") as mounted:
        yield mounted


@contextmanager
def bound_read_only(source: Path, path: Path) -> Iterator[Path]:
    """Mount a directory at another place, where nothing can be written."""
    with _mounted(path, "--bind", str(source)) as mounted:
        # User namespaces lock the flags of what they were given.
        _skip_if_refused(_call("mount", "-o", "remount,ro,bind", str(mounted)), "make a mount read-only")
        yield mounted
