"""Bodies that say whose they are, and cannot be taken for another's."""

from __future__ import annotations

import hashlib

__all__ = ["body_of", "id_of"]


def body_of(name: str, size: int) -> bytes:
    """Return the only body that a message of this name and size may have; `size` counts what follows the name."""
    filler = hashlib.shake_128(name.encode()).hexdigest(size // 2 + 1)[:size]
    return f"{name} {size} {filler}".encode()


def id_of(body: bytes) -> str | None:
    """Return whose body it is, or None where not all of it is right."""
    parts = body.decode("ascii", "replace").split(" ")
    if len(parts) != 3 or not parts[1].isdecimal() or body_of(parts[0], int(parts[1])) != body:
        return None
    return parts[0]
