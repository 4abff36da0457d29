"""Where the figures were measured: without it they mean little."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["IN_MEMORY", "describe", "file_system"]

IN_MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems without a disk: a sync costs nothing there and proves nothing."""

PACKAGES = (
    "aiodq", "aiosqlite", "diskcache", "huey", "isal", "litequeue", "persist-queue", "queuelib", "redis", "uvloop",
)  # fmt: skip


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds `directory`, for example `ext4`; `unknown` outside Linux."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return "unknown"


def describe(directory: Path, loop: str) -> dict[str, str]:
    """Return what to print above the tables."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
        "load": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
        "loop": loop,
        "directory": str(directory),
        "file system": file_system(directory),
        "sqlite": sqlite3.sqlite_version,
        "redis-server": _redis_server(),
        "packages": ", ".join(f"{package} {_version(package)}" for package in PACKAGES),
    }


def _redis_server() -> str:
    server = shutil.which("redis-server")
    if server is None:
        return "none"
    done = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    return next((word.removeprefix("v=") for word in done.stdout.split() if word.startswith("v=")), "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(no version)"
