"""What a store has to hold, may hold and must not hold after a kill, from the notes of child.py's runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.system.child import CHANNELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Ledger"]


@dataclass(slots=True)
class Put:
    """One call of `put` or `put_many`."""

    producer: int
    digests: list[str]
    began: int
    first: int | None = None

    @property
    def offsets(self) -> range:
        return range(0) if self.first is None else range(self.first, self.first + len(self.digests))


@dataclass(slots=True)
class Standing:
    """One channel's messages by what is known of them. Whatever is in none of the sets has not been seen yet.

    `owed` must come; `maybe` may (an ack or a purge was under way); `gone` was acked or purged and must not.
    """

    owed: set[int] = field(default_factory=set)
    maybe: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)

    def move(self, offset: int, target: set[int]) -> None:
        for group in (self.owed, self.maybe, self.gone):
            group.discard(offset)
        target.add(offset)


class Ledger:
    """Feed it a run's notes with `read`, then what the store holds with `compare`."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}
        self.promised: Counter[str] = Counter()
        self.channels = {name: Standing() for name in CHANNELS}
        self.order: dict[int, list[Put]] = {}
        self.acknowledged = 0
        self._line = 0
        self._begin_run()

    def _begin_run(self) -> None:
        self._open_puts: dict[int, Put] = {}
        self._purge_began: int | None = None
        self._purging: dict[str, set[int]] = {}
        self._last_purge = -1
        for standing in self.channels.values():
            standing.held.clear()

    # --- notes

    def read(self, notes: Iterable[list[Any]]) -> None:
        """Take in a run, up to the kill."""
        self._begin_run()
        for kind, *rest in notes:
            self._line += 1
            if kind != "open":
                getattr(self, f"_{kind}")(*rest)

    def _will_put(self, number: int, producer: int, digests: list[str]) -> None:
        self.promised.update(digests)
        put = self._open_puts[number] = Put(producer, digests, self._line)
        self.order.setdefault(producer, []).append(put)

    def _put(self, number: int, first: int) -> None:
        put = self._open_puts.pop(number)
        self._place(put, first)
        self.acknowledged += len(put.offsets)
        purged_meanwhile = self._purge_began is not None or self._last_purge > put.began
        for standing in self.channels.values():
            for offset in put.offsets:
                if offset in standing.maybe or offset in standing.gone:
                    continue
                (standing.maybe if purged_meanwhile else standing.owed).add(offset)

    def _place(self, put: Put, first: int) -> None:
        put.first = first
        for offset, digest in zip(put.offsets, put.digests, strict=True):
            self._know(offset, digest)

    def _know(self, offset: int, digest: str) -> None:
        known = self.digests.setdefault(offset, digest)
        assert known == digest, f"offset {offset} holds other bytes than before"

    def _got(self, channel: str, offset: int, digest: str) -> None:
        standing = self.channels[channel]
        self._know(offset, digest)
        assert offset not in standing.gone, f"{channel}: {offset} came after it was acked or purged"
        assert offset not in standing.held, f"{channel}: {offset} came twice, and nobody gave it back"
        standing.held.add(offset)

    def _will_nack(self, channel: str, offset: int) -> None:
        self.channels[channel].held.discard(offset)

    def _will_ack(self, channel: str, offset: int) -> None:
        self.channels[channel].move(offset, self.channels[channel].maybe)

    def _acked(self, channel: str, offset: int) -> None:
        self.channels[channel].move(offset, self.channels[channel].gone)

    def _will_purge(self) -> None:
        self._purge_began = self._line
        self._purging = {name: set(standing.owed) for name, standing in self.channels.items()}

    def _purged(self) -> None:
        for name, standing in self.channels.items():
            for offset in self._purging[name]:
                if offset in standing.owed:
                    standing.move(offset, standing.gone)
            # What was put meanwhile may have gone with it.
            for offset in list(standing.owed):
                standing.move(offset, standing.maybe)
        self._purge_began, self._last_purge = None, self._line

    # --- what is there

    def compare(self, found: Mapping[str, Mapping[int, str]]) -> None:
        """Hold what each channel delivers after the kill, (offset: digest), against the notes; learn from it.

        Raises:
            AssertionError: a promise was broken.
        """
        for name, messages in found.items():
            for offset, digest in messages.items():
                self._know(offset, digest)
                assert offset not in self.channels[name].gone, f"{name}: {offset} came after it was acked or purged"
        self._no_phantoms()
        self._all_or_nothing(found)
        self._in_order()
        purge_done = self._purge_verdict(found)
        for name, messages in found.items():
            self._nothing_lost(name, messages, purge_done=purge_done)

    def _no_phantoms(self) -> None:
        seen = Counter(self.digests.values())
        phantoms = {digest: number for digest, number in seen.items() if number > self.promised[digest]}
        assert not phantoms, f"messages that nobody put, or that are there twice: {phantoms}"

    def _all_or_nothing(self, found: Mapping[str, Mapping[int, str]]) -> None:
        """Find the puts whose return the kill forestalled, by those of their messages that are like no other."""
        at = {digest: offset for offset, digest in self.digests.items() if self.promised[digest] == 1}
        for put in self._open_puts.values():
            firsts = {at[digest] - place for place, digest in enumerate(put.digests) if digest in at}
            if not firsts:
                continue
            assert len(firsts) == 1, f"a put_many lies scattered: {firsts}"
            put.first = firsts.pop()
            for name, standing in self.channels.items():
                for offset, digest in zip(put.offsets, put.digests, strict=True):
                    may_be_gone = offset in standing.gone or offset in standing.maybe or self._purge_began is not None
                    may_be_gone = may_be_gone or self._last_purge > put.began
                    assert found[name].get(offset) == digest or may_be_gone, f"{name}: only part of a put_many is there"

    def _in_order(self) -> None:
        for producer, puts in self.order.items():
            firsts = [put.first for put in puts if put.first is not None]
            assert firsts == sorted(set(firsts)), f"the puts of producer {producer} are out of order"

    def _purge_verdict(self, found: Mapping[str, Mapping[int, str]]) -> bool:
        """Return whether a purge that the kill cut short was done. It is done for every channel or for none."""
        if self._purge_began is None:
            return False
        owed = {(name, offset) for name in found for offset in self._purging[name] & self.channels[name].owed}
        there = {(name, offset) for name, offset in owed if offset in found[name]}
        assert not there or there == owed, f"a purge was done in part: {len(there)} of {len(owed)} are left"
        return bool(owed) and not there

    def _nothing_lost(self, name: str, messages: Mapping[int, str], *, purge_done: bool) -> None:
        standing = self.channels[name]
        missing = {offset for offset in standing.owed if offset not in messages}
        if self._purge_began is not None:
            began_during = {o for o in missing if o not in self._purging[name]}
            missing = began_during if not purge_done else set()
        assert not missing, f"{name}: acknowledged and lost: {sorted(missing)[:20]} of {len(messages)} found"
        # From here on the store's own word counts: what it shows is owed, what it does not show is gone for good.
        for offset in self.digests:
            standing.move(offset, standing.owed if offset in messages else standing.gone)
