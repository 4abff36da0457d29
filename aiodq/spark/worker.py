"""The processes in which Spark runs Python: tasks, of which one gets many, and what is planned beside the driver."""

from __future__ import annotations

import gc
import os
import sys
from functools import cache

__all__ = ["is_in_files_of_session", "spare_collections"]

_REUSED = "SPARK_REUSE_WORKER"
"""What Spark's daemon is told by, for the processes it forks, that they get more than one task."""


def is_in_files_of_session() -> bool:
    """Return whether the current directory is one for the files that a session has brought: Spark deletes it with it.

    Spark starts processes there for the sessions of Spark Connect, which may each have files of the same names.
    """
    files = sys.modules.get("pyspark.core.files")  # in such a process it is imported before anything of a user's
    return files is not None and vars(files.SparkFiles).get("_root_directory") == os.getcwd()


def spare_collections() -> None:
    """Have garbage collections pass over what a reused worker holds by now.

    Behind each task Spark's daemon collects everything, before the worker takes up its next task. Nearly all that it
    looks at is modules: pyspark's, pyarrow's, numpy's and pandas', tens of thousands of objects that stay anyway. To be
    called at the end of a task: some are imported only when it has begun.
    Elsewhere than in such a worker this does nothing: a process of the user's own keeps its collections as they are.
    """
    if os.environ.get(_REUSED):
        _freeze()


@cache
def _freeze() -> None:
    # Once: what was garbage already, and goes round in a circle, stays for good.
    gc.freeze()
