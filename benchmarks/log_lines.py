"""Messages as they are in logs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def lines(count: int, size: int, seed: int = 1) -> Iterator[bytes]:
    """Yield events as they are in logs: JSON of about one size, half of it alike."""
    rng = random.Random(seed)
    for number in range(count):
        head = f'{{"id":{number},"user":"u{rng.randrange(10_000)}","action":"{rng.choice(("view", "buy", "back"))}"'
        yield f'{head},"note":"{rng.randbytes(size).hex()}'[: size - 2].encode() + b'"}'
