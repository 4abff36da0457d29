"""Which store it is, and whether who reads elsewhere goes by that."""

from __future__ import annotations

from aiodq.engine.store import opening
from aiodq.spark import visible
from aiodq.storage.state.store_identity import StoreIdentity
from tests.proof.mutants.registry import change

_FILE = "tests/storage/state/test_store_identity.py"

change(
    "a store is another one whenever it is opened",
    StoreIdentity.__init__,
    "self._settled = self._there = read_identity(fs, store) is not None",
    "self._there = read_identity(fs, store) is not None",
    test=f"{_FILE}::test_it_is_made_with_the_first_topic_and_never_again",
)
change(
    "a store says which it is before it has a topic",
    opening.open_store,
    "if topics.there:",
    "if lock:",
    test=f"{_FILE}::test_an_older_aiodq_finds_nothing_but_topics_and_what_it_knows",
)
change(
    "a store keeps what it was when its last topic went",
    StoreIdentity.drop,
    "self._fs.remove(self._path)",
    "None",
    test=f"{_FILE}::test_an_older_aiodq_finds_nothing_but_topics_and_what_it_knows",
)
change(
    "what says which store it is cannot be read and is written over",
    StoreIdentity._set_aside,
    "quarantine_file(self._fs, self._path)",
    "None",
    test=f"{_FILE}::test_damage_is_quarantined_and_told_and_costs_no_message",
)
change(
    "a topic is read whatever store it lies in",
    visible._require_store,
    "if found != place.store:",
    "if found is None:",
    test="tests/spark/test_visible.py::test_another_store_with_the_same_topic_is_not_read",
)
