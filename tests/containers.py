"""Processes in a PID namespace of their own, as containers have."""

from __future__ import annotations

import subprocess
from contextlib import suppress

import pytest

__all__ = ["in_a_container"]


def in_a_container(command: list[str], *, sees_others: bool = True) -> list[str]:
    """Return the command that runs another in a PID namespace of its own, where its pid is 1.

    Args:
        command: the program and its arguments.
        sees_others: whether /proc there still shows the processes outside.
    """
    apart = ["--pid", "--fork", *([] if sees_others else ["--mount-proc"])]
    for user in ([], ["--user", "--map-root-user"]):
        prefix = ["unshare", *user, *apart]
        with suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([*prefix, "true"], check=True, capture_output=True)
            return [*prefix, *command]
    pytest.skip("this user may make no PID namespace here (unshare)")
