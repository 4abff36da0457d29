"""Where another process owns the store, no method runs that needs the engine: that much the types cannot tell.

What the handles do in every process is in base classes; their types are Protocols, of which engines and stand-ins are.
What only `Channel`, `Topic`, `Queue` and `Store` do needs an engine; each of those methods has another one here.
"""

from __future__ import annotations

from typing import Any

import pytest

from aiodq.channel import Channel
from aiodq.channel_handle import ChannelHandle
from aiodq.queue import Queue, QueueHandle
from aiodq.shared.handles.shared_channel import SharedChannel
from aiodq.shared.handles.shared_queue import SharedQueue
from aiodq.shared.handles.shared_store import SharedStore
from aiodq.shared.handles.shared_topic import SharedTopic
from aiodq.store import Store, StoreHandle
from aiodq.topic import Topic, TopicHandle


@pytest.mark.parametrize(
    ("common", "owned", "shared"),
    [
        (ChannelHandle, Channel, SharedChannel),
        (QueueHandle, Queue, SharedQueue),
        (StoreHandle, Store, SharedStore),
        (TopicHandle, Topic, SharedTopic),
    ],
)
def test_what_needs_the_engine_is_overridden(common: type[Any], owned: type[Any], shared: type[Any]) -> None:
    own = {
        name
        for name, value in vars(owned).items()
        if (callable(value) or isinstance(value, property)) and (not name.startswith("_") or hasattr(common, name))
    }
    assert own - {"__doc__"}
    assert not own - vars(shared).keys()
