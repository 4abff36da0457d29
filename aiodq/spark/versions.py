"""Which Spark this works with. Of an older one users would see only that it finds no format of that name."""

from __future__ import annotations

import re
from typing import Final

from aiodq.errors import MissingExtraError

__all__ = ["LEAST", "refuse_old"]

LEAST: Final = (4, 2)
"""The first whose Python sources can say how much one batch of a stream takes in, and can write Arrow."""


def refuse_old(version: str) -> None:
    """Make sure that this version of pyspark has what is needed.

    Raises:
        MissingExtraError: it is too old.
    """
    found = re.match(r"([0-9]+)\.([0-9]+)", version)
    if found is not None and (int(found[1]), int(found[2])) < LEAST:
        least = ".".join(map(str, LEAST))
        raise MissingExtraError(
            f"aiodq works with pyspark {least} and later, and this is {version}: pip install -U 'aiodq[spark]', "
            f"on the driver and on every worker"
        )
