"""Changes that a client asks for, each with a number."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from aiodq.wire.layout import CHANGES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["numbered"]


def numbered(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a change with a number, by which an owner knows a repeated one."""
    return {**arguments, "change": secrets.randbelow(CHANGES - 1) + 1}
