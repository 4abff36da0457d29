"""The health of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.engine.monitoring.metrics import LEAST_FREE, SLOW_SYNC
from aiodq.engine.stats.topic_stats import backlogs
from aiodq.stats import Health

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.engine.store.store_engine import StoreEngine

__all__ = ["health"]


def health(store_engine: StoreEngine) -> Health:
    """Return the current health of a store, from what is in memory."""
    now_ns = store_engine.clock.now_ns()
    found = [one for engine in store_engine.topics.values() for one in backlogs(engine, now_ns)]
    reasons = tuple(_reasons(store_engine))
    return Health(
        ok=not reasons,
        reasons=reasons,
        failed=None if store_engine.failure is None else str(store_engine.failure),
        oldest_age=max((one.oldest_age for one in found if one.oldest_age is not None), default=None),
        depth=max((one.depth for one in found), default=0),
        disk_free=store_engine.metrics.disk_free,
        sync_latency=store_engine.metrics.sync_latency,
    )


def _reasons(store_engine: StoreEngine) -> Iterator[str]:
    metrics = store_engine.metrics
    if store_engine.failure is not None:
        yield f"failed: {store_engine.failure}"
    elif not store_engine.usable:
        yield f"the store is {store_engine.standing}"
    if metrics.displaced:
        yield (
            f"{store_engine.path} does not lead to the open store any more: {metrics.displaced}. Puts and acks go on "
            "into that directory until a new file is needed: close the store and open it where it is, or put it back"
        )
    for engine in store_engine.topics.values():
        if engine.unusable is not None:
            yield f"topic {engine.name!r} cannot be used: {engine.unusable}"
    for topic, why in metrics.refusing.items():
        yield f"topic {topic!r}: {why}"
    if metrics.disk_free is not None and metrics.disk_free < LEAST_FREE:
        yield f"{metrics.disk_free:,} bytes are free on the disk, less than {LEAST_FREE:,}"
    if metrics.sync_latency > SLOW_SYNC:
        yield f"the disk is slow: a sync took {metrics.sync_latency:.1f} s within the last minute"
    yield from store_engine.thresholds.reasons
