"""What is remembered of acks and rejections that no owner has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodq.shared.consuming import unanswered
from aiodq.shared.consuming.sent_settlements import SentSettlement
from aiodq.shared.consuming.unanswered import Unanswered
from aiodq.wire.packets import Reject

if TYPE_CHECKING:
    import pytest


def acking(*numbers: range) -> SentSettlement:
    return SentSettlement(numbers, None)


def rejecting(number: int) -> SentSettlement:
    return SentSettlement([range(number, number + 1)], lambda handle: Reject(handle, 1, 1, 0, number, "", ""))


def test_each_message_is_called_again_once() -> None:
    kept, acks, rejection = Unanswered(), acking(range(1, 3), range(7, 8)), rejecting(5)
    kept.note(acks)
    kept.note(rejection)
    assert kept.find(2) is acks
    assert kept.take(2) is acks
    assert kept.take(2) is None
    assert kept.take(5, rejected=True) is rejection
    assert list(kept) == [1, 7]


def test_what_is_called_again_is_what_was_called_before() -> None:
    kept = Unanswered()
    kept.note(acking(range(1, 2)))
    kept.note(rejecting(5))
    assert kept.take(1, rejected=True) is None
    assert kept.take(5) is None
    assert "message 10 was acked before: ack it again" in str(kept.refusal(10, 1))
    assert "message 50 was rejected before: reject it again" in str(kept.refusal(50, 5))


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unanswered, "_MOST", 3)
    kept = Unanswered()
    kept.note(acking(range(1, 4)))
    kept.note(acking(range(8, 10)))
    assert list(kept) == [3, 8, 9]
