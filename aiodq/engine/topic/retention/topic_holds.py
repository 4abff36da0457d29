"""What readers beside the store ask to be kept of a topic."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aiodq.storage.state.holds import read_holds

if TYPE_CHECKING:
    from aiodq.engine.engine_host import TopicEngineHost
    from aiodq.engine.topic.whole_topic import WholeTopic

__all__ = ["FRESH", "look_at_holds"]

FRESH: Final = 0.5
"""Seconds from the reading of the holds in which segments may be deleted by them. Making a hold takes longer."""


def look_at_holds(host: TopicEngineHost, engine: WholeTopic) -> tuple[float, dict[str, int]]:
    """Return when the holds were read, and the first offset of this topic that each keeps, by name. Blocking.

    Raises:
        StorageError: as mapped from the system's error.
    """
    began = host.clock.monotonic()
    holds = read_holds(host.fs_of(engine.name), os.path.dirname(engine.real_log().directory))
    found = {name: hold.first(engine.name) for name, hold in holds.items()}
    return began, {name: first for name, first in found.items() if first is not None}
