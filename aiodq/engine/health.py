"""Whether a store is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.engine.figures import backlogs
from aiodq.engine.vitals import LEAST_FREE, SLOW_SYNC
from aiodq.stats import Health

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.engine.runtime import Runtime

__all__ = ["health"]


def health(runtime: Runtime) -> Health:
    """Return how a store is now, from what is in memory."""
    now_ns = runtime.clock.now_ns()
    found = [one for ioloop in runtime.topics.values() for one in backlogs(ioloop, now_ns)]
    reasons = tuple(_reasons(runtime))
    return Health(
        ok=not reasons,
        reasons=reasons,
        failed=None if runtime.failure is None else str(runtime.failure),
        oldest_age=max((one.oldest_age for one in found if one.oldest_age is not None), default=None),
        depth=max((one.depth for one in found), default=0),
        disk_free=runtime.vitals.disk_free,
        sync_latency=runtime.vitals.sync_latency,
    )


def _reasons(runtime: Runtime) -> Iterator[str]:
    vitals = runtime.vitals
    if runtime.failure is not None:
        yield f"failed: {runtime.failure}"
    for ioloop in runtime.topics.values():
        if ioloop.unusable is not None:
            yield f"topic {ioloop.name!r} cannot be used: {ioloop.unusable}"
    for topic, why in vitals.refusing.items():
        yield f"topic {topic!r}: the disk is full: {why}"
    if vitals.disk_free is not None and vitals.disk_free < LEAST_FREE:
        yield f"{vitals.disk_free:,} bytes are free on the disk, less than {LEAST_FREE:,}"
    if vitals.sync_latency > SLOW_SYNC:
        yield f"the disk is slow: a sync took {vitals.sync_latency:.1f} s within the last minute"
    yield from runtime.thresholds.reasons
