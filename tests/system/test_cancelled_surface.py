"""No public coroutine is left out of what test_cancellation.py cancels after each of its steps."""

from __future__ import annotations

import inspect
import re

import aiodq
from aiodq.opening import QueueOpening, StoreOpening
from tests.system import test_cancellation
from tests.system.test_cancellation import SCENARIOS

OF_A_LOG = {
    "put": "put put_to_getter put_without_room put_beside_others",
    "put_many": "put_many",
    "sync": "sync",
    "read": "read",
    "scan": "scan scan_back",
    "offset_at": "offset_at",
    "purge": "purge",
    "pause": "pause",
    "resume": "pause",
    "configure": "configure",
}
OF_A_CHANNEL = {
    "get": "get get_with_timeout get_from_disk",
    "get_many": "get_many get_many_with_auto_ack get_many_before_another",
    "__aiter__": "iterate",
    "ack_many": "ack_many",
    "deferred_messages": "deferred_messages",
    "cancel": "cancel_deferred",
    "peek": "peek",
    "refresh": "refresh",
    "join": "join",
    "purge": "purge_channel",
    "seek": "seek",
    "configure": "configure_channel",
    "consume": "consume",
    "stop": "stop",
    "pause": "pause",
    "resume": "pause",
}
CANCELLED = {
    "StoreOpening": {"__await__": "open_store", "__aenter__": "open_store_as_context", "__aexit__": "aclose_store"},
    "QueueOpening": {"__await__": "open_queue", "__aenter__": "open_queue_as_context", "__aexit__": "aclose"},
    "Store": {
        "aclose": "aclose_store",
        "backup": "backup",
        "delete_topic": "delete_topic delete_topic_before_aclose",
        "drain": "drain_store",
        "requeue_dead": "requeue_dead",
        "stop": "stop_store",
        "__aenter__": "open_store_as_context",
        "__aexit__": "open_store_as_context",
    },
    "Topic": {**OF_A_LOG, "settle_in": "settle_in", "delete_channel": "delete_channel"},
    "Channel": OF_A_CHANNEL,
    "Queue": {
        **OF_A_LOG,
        **OF_A_CHANNEL,
        "purge": "purge",
        "delete_channel": "delete_channel",
        "aclose": "aclose",
        "__aenter__": "queue_as_context",
        "__aexit__": "queue_as_context",
    },
    "Message": {
        "ack": "ack",
        "nack": "nack",
        "reject": "reject reject_to_topic",
        "touch": "touch",
        "renewing": "renewing",
        "__aenter__": "message_as_context",
        "__aexit__": "message_as_context",
    },
    "Receipt": {"__await__": "receipt"},
    "Events": {"__aiter__": "event", "__anext__": "event"},
    "Transaction": {"__aenter__": "transaction", "__aexit__": "transaction"},
}
"""The scenarios of test_cancellation.py, by what they cancel."""

TYPES = (
    StoreOpening,
    QueueOpening,
    aiodq.Store,
    aiodq.Topic,
    aiodq.Channel,
    aiodq.Queue,
    aiodq.Message,
    aiodq.Receipt,
    aiodq.Events,
    aiodq.Transaction,
)
AWAITED = {"__await__", "__aiter__", "__anext__", "__aenter__", "__aexit__"}


def awaitable(thing: type) -> set[str]:
    """Return the names of what has to be awaited, or iterated over asynchronously."""
    found = set()
    for name, member in inspect.getmembers(thing, inspect.isfunction):
        returned = str(inspect.signature(member).return_annotation)
        public = not name.startswith("_") and (
            inspect.iscoroutinefunction(member) or re.match("Async|Await", returned) is not None
        )
        if public or (name in AWAITED and returned != "NoReturn"):
            found.add(name)
    return found


def test_every_public_coroutine_is_cancelled_after_each_of_its_steps() -> None:
    assert {thing.__name__: awaitable(thing) for thing in TYPES} == {
        name: set(methods) for name, methods in CANCELLED.items()
    }


def test_every_type_with_a_coroutine_is_among_them() -> None:
    public = {thing for name in aiodq.__all__ if inspect.isclass(thing := getattr(aiodq, name))}
    own = {thing for thing in public if awaitable(thing) - awaitable(thing.__mro__[1])}
    assert {thing.__name__ for thing in own} <= {thing.__name__ for thing in TYPES}


def test_the_scenarios_named_are_those_that_run() -> None:
    named = {name for methods in CANCELLED.values() for names in methods.values() for name in names.split()}
    assert named == {scenario.__name__ for scenario in SCENARIOS}
    written = {
        name
        for name, thing in vars(test_cancellation).items()
        if inspect.iscoroutinefunction(thing) and list(inspect.signature(thing).parameters) == ["case"]
    }
    assert written - {"with_backlog"} == named
