"""Raises an error that names the missing extra when it is imported: its importers need no check of their own."""

from __future__ import annotations

from importlib.util import find_spec

from aiodq.errors import MissingExtraError

__all__ = ["check_extra"]


def check_extra() -> None:
    """Make sure that the packages of the extra `spark` are installed.

    Raises:
        MissingExtraError: one is not.
    """
    for name in ("pyspark", "py4j", "pandas", "pyarrow", "numpy"):
        if find_spec(name) is None:
            raise MissingExtraError(f"this needs {name}: pip install 'aiodq[spark]'", name=name)


check_extra()
