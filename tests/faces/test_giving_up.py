"""A message that is given up while the dead-letter topic is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiodq
from tests.channels.support import counts, ready, soon

if TYPE_CHECKING:
    from tests.channels.support import Machine


async def test_reject_to_a_full_dead_letter_topic_says_so_and_the_message_comes_again(machine: Machine) -> None:
    async with machine.store(max_messages=1, overflow="reject") as store:
        dead = store.queue("dead")
        await dead.put(b"in the way")
        jobs = store.queue("jobs", aiodq.ChannelOptions(dead_letter="dead"))
        await jobs.put(b"bad")
        message = await jobs.get()
        with pytest.raises(aiodq.StorageError, match=r"dead-letter topic 'dead' .*is redelivered") as caught:
            await message.reject("no use")
        assert caught.value.retriable
        assert isinstance(caught.value.__cause__, aiodq.QueueFull)
        assert message.settled
        assert counts(jobs) == (0, 0, 1)
        await (await dead.get()).ack()
        machine.clock.advance(60)
        again = await soon(jobs.get())
        assert (again.body, again.attempts) == (b"bad", 2)
        await again.reject("no use")
        assert jobs.depth == 0
        assert ready(dead) == [b"bad"]
