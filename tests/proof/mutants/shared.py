"""One store and many processes: which put is known, who is asked in which order, and what is in whose hands."""

from __future__ import annotations

from aiodq.shared.lending import Lending
from aiodq.shared.link import Link
from aiodq.shared.owner import Owner
from aiodq.shared.remote_channel import RemoteChannel
from aiodq.storage.log.active_segment import ActiveSegment
from tests.proof.mutants.registry import change

_OWNER = "tests/shared/test_owner.py"
_ORDER = "tests/shared/test_order.py"

change(
    "puts that may come again are forgotten at a new segment",
    ActiveSegment._controls,
    "if producers is not None and producers.puts and first == self.segment.base:",
    "if producers is not None and first < 0:",
    test="tests/storage/log/test_producer_table.py::test_a_segment_begins_with_who_was_known_however_it_begins",
)
change(
    "puts that waited for an owner come after newer ones",
    Link._begin,
    "self._send_put(topic, sequence)",
    "asyncio.get_running_loop().call_later(0.5, self._send_put, topic, sequence)",
    test=f"{_ORDER}::test_what_waited_is_put_before_anything_newer_and_in_its_order",
)
change(
    "puts that waited for an owner come in another order",
    Link._begin,
    "for sequence in list(state.pending):",
    "for sequence in reversed(list(state.pending)):",
    test=f"{_ORDER}::test_what_waited_is_put_before_anything_newer_and_in_its_order",
)
change(
    "an owner is found before it knows what was put",
    Owner.start,
    "for topic in self.engine.topics.values():",
    "self._listening = listen(self.engine.path)\n    for topic in self.engine.topics.values():",
    test=f"{_ORDER}::test_nobody_finds_an_owner_that_does_not_know_yet_what_was_put",
)
change(
    "what a client holds since an owner before is not left to it",
    Lending._claim,
    "if state is None or not state.is_ready(seen.offset):",
    "if state is None or seen:",
    test="tests/shared/test_modes.py::test_an_owner_that_closes_hands_over",
)
change(
    "a message is settled by what an owner before has delivered",
    Lending.find,
    "if epoch == self._owner.epoch else None",
    "",
    test=f"{_OWNER}::test_what_a_client_does_not_hold_it_cannot_settle",
)
change(
    "an owner goes on giving what is not wanted any more",
    Lending.want,
    "self._getting.cancel()",
    "None",
    test=f"{_OWNER}::test_no_more_is_given_than_is_wanted_and_a_want_can_be_withdrawn",
)
change(
    "a client goes on wanting what nobody waits for",
    RemoteChannel._withdraw,
    "if self._wanted > self._got:",
    "if self is None:",
    test="tests/shared/test_modes.py::test_who_does_not_wait_any_more_has_nothing_sent",
)
change(
    "after a crash messages are delivered before those who hold them were heard",
    Owner._hold_back,
    "channel_engine.reclaim(under_way=under_way)",
    "None",
    test=f"{_OWNER}::test_after_a_crash_nothing_is_delivered_before_those_who_hold_it_were_heard",
)
