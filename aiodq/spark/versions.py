"""The versions of Spark that work. With an older one, users would only see that it does not find the format."""

from __future__ import annotations

import re
from typing import Final

from aiodq.errors import MissingExtraError

__all__ = ["refuse_old"]

_LEAST: Final = (4, 2)
"""The first version whose Python data sources can limit the batches of a stream, and write Arrow."""


def refuse_old(version: str) -> None:
    """Make sure that this version of pyspark is new enough.

    Raises:
        MissingExtraError: it is too old.
    """
    found = re.match(r"([0-9]+)\.([0-9]+)", version)
    if found is not None and (int(found[1]), int(found[2])) < _LEAST:
        least = ".".join(map(str, _LEAST))
        raise MissingExtraError(
            f"aiodq works with pyspark {least} and later, and this is {version}: pip install -U 'aiodq[spark]', "
            f"on the driver and on every worker"
        )
