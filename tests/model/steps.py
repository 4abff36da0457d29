"""What a random run does: each step calls the store, checks the answer, and does the same to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.model import copying, draining, living, loading, moving, outside, putting, queues, taking, together

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.model.run import Run

__all__ = ["STEPS"]

STEPS: Final[tuple[tuple[Callable[[Run], Awaitable[None]], int], ...]] = (
    (putting.put, 12),
    (putting.put_many, 8),
    (putting.put_nowait, 4),
    (taking.get, 40),
    (taking.wait_and_put, 4),
    (taking.ack, 10),
    (taking.ack_many, 6),
    (taking.nack, 10),
    (taking.release, 3),
    (taking.in_context, 4),
    (taking.reject, 3),
    (taking.touch, 3),
    (taking.settle_stale, 4),
    (taking.let_time_pass, 5),
    (putting.transact, 6),
    (moving.requeue_dead, 2),
    (moving.seek, 2),
    (moving.configure, 2),
    (moving.find_moment, 2),
    (together.at_once, 6),
    (together.consume, 5),
    (queues.task_done, 4),
    (queues.join, 3),
    (queues.shut_down, 1),
    (draining.drain, 2),
    (moving.purge_channel, 1),
    (moving.purge_topic, 1),
    (moving.pause, 2),
    (moving.look, 3),
    (moving.peek, 3),
    (moving.read, 3),
    (moving.look_at_deferred, 2),
    (moving.cancel, 2),
    (living.make_topic, 5),
    (living.make_channel, 6),
    (living.delete_channel, 1),
    (living.delete_topic, 1),
    (living.remake_topic, 2),
    (living.reopen, 2),
    (copying.restore, 2),
    (loading.load, 4),
    (outside.look_from_outside, 3),
    (living.crash, 3),
    (living.replace_member, 3),
    (living.own_elsewhere, 2),
    (living.kill_owner, 6),
)
"""The steps, and how often each of them is taken."""
