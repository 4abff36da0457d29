"""How far the exhaustive tests go, where that is for who runs them to say: `AIODQ_KILLS=1000 pytest -m slow …`.

`python -m tests.proof --figure kills=1000` sets these, too.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["FIGURES", "figure", "variable"]

FIGURES: Final = {"kills": 1000, "handovers": 200, "opens": 1000, "packets": 10_000_000}
"""What each is without being said: of owners that are killed, or end by SIGTERM, of simultaneous opens, of packets."""


def variable(name: str) -> str:
    """Return the variable of the environment that says how many."""
    return f"AIODQ_{name.upper()}"


def figure(name: str) -> int:
    """Return how many there shall be."""
    return int(os.environ.get(variable(name), FIGURES[name]))
