"""Says which extra is missing, before anything of it is imported: who imports this need not check by himself."""

from __future__ import annotations

from importlib.util import find_spec

from aiodq.errors import MissingExtraError

__all__ = ["check_extra"]


def check_extra() -> None:
    """Make sure that what the extra `spark` installs is there.

    Raises:
        MissingExtraError: something is not.
    """
    for name in ("pyspark", "py4j", "pandas", "pyarrow", "numpy"):
        if find_spec(name) is None:
            raise MissingExtraError(f"this needs {name}: pip install 'aiodq[spark]'", name=name)


check_extra()
