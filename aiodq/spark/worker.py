"""The Python processes of Spark: workers, each of which runs many tasks, and those that plan beside the driver."""

from __future__ import annotations

import gc
import os
import sys
from functools import cache

__all__ = ["is_in_files_of_session", "spare_collections"]

_REUSED = "SPARK_REUSE_WORKER"
"""The environment variable that tells Spark's daemon that the processes it forks run more than one task."""


def is_in_files_of_session() -> bool:
    """Return whether the working directory is one for the files of a session: Spark deletes it with the session.

    Spark starts processes there for the sessions of Spark Connect, as different sessions may have files of one name.
    """
    files = sys.modules.get("pyspark.core.files")  # in such a process it is imported before the user's modules
    return files is not None and vars(files.SparkFiles).get("_root_directory") == os.getcwd()


def spare_collections() -> None:
    """Exclude what a reused worker holds now from later garbage collections.

    After each task, Spark's daemon collects garbage before the worker takes its next task. Nearly all that it looks at
    belongs to modules of pyspark, pyarrow, numpy and pandas: tens of thousands of objects that stay anyway. This is
    called at the end of a task, as some modules are imported only when it has begun.
    In other processes this does nothing: those of users keep their garbage collection as it is.
    """
    if os.environ.get(_REUSED):
        _freeze()


@cache
def _freeze() -> None:
    # Only once: reference cycles that are garbage already would never be collected.
    gc.freeze()
