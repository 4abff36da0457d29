"""Opens what a power cut left, and says what is wrong with it."""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import Executor, Future
from itertools import pairwise
from typing import TYPE_CHECKING, Final, ParamSpec, Self, TypeVar

import aiodq
from aiodq.testing import STALE, FakeClock, Image, SimulatedFileSystem, SimulatedLoop
from tests.proof.ledger import SOMEWHERE
from tests.proof.world import PATH, SAFETY, found_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.proof.ledger import Ledger, Topic, TopicFound

__all__ = ["Opened", "Recoverer", "check", "digest_of", "judge", "judge_found", "same"]

P = ParamSpec("P")
T = TypeVar("T")

_REMEMBERED: Final = 256
"""So many openings at most: most disks that are met again were met a moment before, and all of them are much memory."""


class Opened:
    """A store that was opened after a power cut.

    Attributes:
        found: what it showed.
        fs: its disk, with the trace of opening it.
        sure: the disk after another power cut, once all was read, that takes everything that was not synced.
        error: why it could not be opened or read.
        damages: stretches that were reported as damaged, by topic.
        stale: bytes that nobody wrote were there; to report them is right.
    """

    def __init__(self, fs: SimulatedFileSystem) -> None:
        self.fs = fs
        self.found: dict[str, TopicFound] = {}
        self.sure: Image = {}
        self.error: Exception | None = None
        self.damages: dict[str, int] = {}
        self.stale = False


class _OnTheLoop(Executor):
    """Does what threads would do in a later step of the loop: nobody is held up, and a thread each takes longer."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - it is handed to who waits, whatever it is
                future.set_exception(error)

        asyncio.get_running_loop().call_soon(work)
        return future


class Recoverer:
    """Opens stores on one simulated loop: making a loop for each would take most of the time.

    What a store shows is decided by its disk alone, so one that was opened lately is not opened again.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=SimulatedLoop)
        self._known: dict[bytes, Opened] = {}

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def open(self, image: Image, *, record: bool = False) -> Opened:
        """Open the store that `image` holds, and read all of it."""
        digest = digest_of(image)
        known = self._known.pop(digest, None)
        if known is None or (record and known.fs.trace is None):
            known = self._open(image, record=record)
        self._known[digest] = known
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return known

    def _open(self, image: Image, *, record: bool) -> Opened:
        opened = Opened(SimulatedFileSystem(image, record=record))
        opened.stale = any(data is not None and STALE in data for data in image.values())
        try:
            self._runner.run(self._read(opened))
        except (aiodq.AiodqError, OSError, TimeoutError) as error:
            opened.error = error
        return opened

    @staticmethod
    async def _read(opened: Opened) -> None:
        async with (
            asyncio.timeout(SAFETY),
            aiodq.open(PATH, fs=opened.fs, clock=FakeClock(), executor=_OnTheLoop()) as store,
        ):
            opened.found = await found_in(store)
            opened.sure = opened.fs.durable()
            stats = store.stats()
            opened.damages = {name: topic.damages for name, topic in stats.topics.items() if topic.damages}


def digest_of(image: Image) -> bytes:
    """Return what tells a disk from others."""
    found = hashlib.blake2b(digest_size=16)
    for path, data in sorted(image.items()):
        found.update(path.encode())
        found.update(b"/" if data is None else hashlib.blake2b(data, digest_size=16).digest())
    return found.digest()


def same(first: Mapping[str, TopicFound], second: Mapping[str, TopicFound]) -> bool:
    """Return whether both show the same, but for what retention deletes meanwhile."""
    return first.keys() == second.keys() and all(_same_topic(first[name], second[name]) for name in first)


def _same_topic(first: TopicFound, second: TopicFound) -> bool:
    both = first.log.keys() & second.log.keys()
    kept = all(first.log[offset] == second.log[offset] for offset in both)
    # Also while the first was read: what was behind the reader then is missing there.
    gone = {name for log in (first.log, second.log) for offset, name in log.items() if offset not in both}
    gone -= {first.log[offset] for offset in both}  # a letter that came back has two offsets
    wanted = any(gone & set(names) for names in (*second.channels.values(), *second.deferred.values()))
    alike = first.channels == second.channels and first.deferred == second.deferred
    return kept and alike and not wanted and (bool(first.channels) or not gone)


def judge(ledger: Ledger, opened: Opened) -> list[str]:
    """Return what contradicts the ledger, each beginning with what kind of violation it is."""
    if opened.error is not None:
        return [f"recovery failed: {opened.error!r}"]
    return judge_found(ledger, opened.found, opened.damages)


def judge_found(ledger: Ledger, found: dict[str, TopicFound], damages: dict[str, int]) -> list[str]:
    """Return what contradicts the ledger, or is called damage although nothing was."""
    wrong = [f"false damage: {number} in topic {name}" for name, number in damages.items()]
    return wrong + check(ledger, found)


def check(ledger: Ledger, found: dict[str, TopicFound]) -> list[str]:
    """Return what in `found` contradicts the ledger."""
    wrong = [f"deletion: topic {name} is there again" for name in found if name not in ledger.topics]
    for name, topic in ledger.topics.items():
        seen = found.get(name)
        if seen is None:
            if not topic.deleting and set(topic.promised) - topic.purging and not _all_settled(topic):
                wrong.append(f"lost: topic {name}")
            continue
        # INVARIANT: options that keep everything are on disk, and nothing went by those that are to follow them.
        topic.keeps = topic.loose is not None and seen.keeps
        if topic.rules and seen.named is not None and seen.named not in topic.rules:
            wrong.append(f"options: {seen.named} were never named (topic {name})")
        if topic.loose is not None and seen.named is None:
            wrong.append(f"options: lost (topic {name})")
        wrong += [f"{item} (topic {name})" for item in (*_log(topic, seen), *_channels(topic, seen))]
        wrong += [f"{item} (topic {name})" for item in _settings(topic, seen)]
        wrong += [f"{item} (topic {name})" for item in _moves(topic, seen, found)]
    wrong += _requeues(ledger, found)
    return wrong + [f"half a transaction: {halves}" for halves in _transactions(ledger, found)]


def _transactions(ledger: Ledger, found: dict[str, TopicFound]) -> Iterator[str]:
    """Check that of each transaction all was done, or nothing."""
    for transaction in ledger.transactions:
        done: set[str] = set()
        undone: set[str] = set()
        for topic, name in transaction.puts:
            if topic not in ledger.topics or ledger.topics[topic].deleting:
                continue
            there = topic in found and name in found[topic].log.values()
            if there or name not in ledger.topics[topic].released():
                (done if there else undone).add(f"{name} in {topic}")
        for topic, channel, name in transaction.acks:
            seen = found.get(topic)
            if seen is None or topic not in ledger.topics or ledger.topics[topic].sought:
                continue
            ready = {*seen.channels.get(channel, ()), *seen.deferred.get(channel, ())}
            (undone if name in ready else done).add(f"ack of {name} in {topic}")
        if done and undone:
            yield f"{sorted(done)} and not {sorted(undone)}"


def _requeues(ledger: Ledger, found: dict[str, TopicFound]) -> Iterator[str]:
    """Check that what goes back is in one of two channels, and not in both."""
    for letter in ledger.requeues:
        places = ((letter.topic, letter.channel), (letter.target, letter.into))
        if any(topic not in found or channel not in found[topic].channels for topic, channel in places):
            yield f"lost: a channel between which {letter.name} goes"
            continue
        there = [
            letter.name in {*found[topic].channels[channel], *found[topic].deferred.get(channel, ())}
            for topic, channel in places
        ]
        if sum(there) != 1:
            yield f"requeued: {letter.name} is in {sum(there)} of {places}"


def _moves(topic: Topic, seen: TopicFound, found: dict[str, TopicFound]) -> Iterator[str]:
    """Check that what is given up is in one of two places."""
    for channel, leaving in topic.leaving.items():
        here = {*seen.channels.get(channel, ()), *seen.deferred.get(channel, ())}
        for name, target in leaving.items():
            there = found[target].log.values() if target in found else ()
            if name not in here and name not in there and name in topic.promised:
                yield f"lost: {name} on its way from channel {channel} to {target}"


def _settings(topic: Topic, seen: TopicFound) -> Iterator[str]:
    """Check that of each change all is there, or nothing."""
    for channel in seen.channels.keys() - topic.channels.keys():
        yield f"deletion: channel {channel} is there again"
    for (channel, what), values in topic.settings.items():
        if (channel, what) in seen.settings and (value := seen.settings[channel, what]) not in values:
            yield f"options: {what} of channel {channel!r} is {value}, not {' or '.join(map(str, values))}"


def _all_settled(topic: Topic) -> bool:
    return bool(topic.channels) and all(set(topic.promised) <= may for may, _, _ in topic.channels.values())


def _log(topic: Topic, seen: TopicFound) -> Iterator[str]:
    """Check what the log holds by itself."""
    offsets = sorted(seen.log)
    names = set(seen.log.values())
    # What retention deleted before anybody looked at the store comes back where the deletion was not synced; no channel
    # may deliver it then.
    known = [name for offset, name in seen.log.items() if offset not in topic.gone]
    yield from (f"phantom: {name}" for name in sorted(set(known) - set(topic.possible)))
    once = [name for name in known if name not in topic.arriving]
    if len(set(once)) != len(once):
        yield f"duplicate: {len(once) - len(set(once))} messages have two offsets"
    for offset, name in seen.log.items():
        excused = name in topic.arriving or offset in topic.gone
        if topic.promised.get(name, offset) not in {offset, SOMEWHERE} and not excused:
            yield f"moved: {name} from {topic.promised[name]} to {offset}"
    released = topic.released()
    yield from _holes(topic, offsets, released)
    for group in topic.groups:
        missing = [name for name in group if name not in names]
        if missing and len(missing) < len(group) and not set(missing) <= released:
            yield f"torn: {len(missing)} of {len(group)} that were put together are missing"
    if not topic.deleting and (gone := set(topic.promised) - names - released):
        yield f"lost: {sorted(gone)} from the log"


def _holes(topic: Topic, offsets: list[int], released: set[str]) -> Iterator[str]:
    """Check that nothing is missing between two messages but what retention may have deleted."""
    names = {offset: name for name, offset in topic.promised.items()}
    # What was committed, and what came from another topic, has an offset that nobody was told as long as nobody looked.
    untold = (name for name in released if topic.promised.get(name) == SOMEWHERE or name in topic.arriving)
    # Where a letter was before it came back it was settled; whether it is lost, its channels tell.
    released = released | topic.arriving
    for before, after in pairwise(offsets):
        missing = [
            names.get(at) or next(untold, "of which nobody was told")
            for at in range(before + 1, after)
            if at not in topic.gone
        ]
        if not set(missing) <= released:
            yield f"hole: {missing} between {before} and {after}"


def _channels(topic: Topic, seen: TopicFound) -> Iterator[str]:
    """Check what each channel delivers."""
    for channel, (may, has, unseen) in topic.channels.items():
        ready = seen.channels.get(channel)
        if ready is None:
            gone = topic.deleting or channel in topic.closing or channel in topic.creation
            if not gone and (lost := set(topic.promised) - may - unseen - topic.purging):
                yield f"lost: {sorted(lost)} with channel {channel}"
            continue
        later = seen.deferred.get(channel, frozenset())
        if lost := set(topic.promised) - may - unseen - topic.purging - set(ready) - later:
            yield f"lost: {sorted(lost)} for channel {channel}"
        if back := (has | topic.purged) & {*ready, *later}:
            yield f"resurrected: {sorted(back)} for channel {channel}"
        if strange := {*ready, *later} - set(topic.possible):
            yield f"phantom: {sorted(strange)} for channel {channel}"
        if early := topic.deferred[channel] & set(ready):
            yield f"early: {sorted(early)} for channel {channel}"
        yield from _counts(topic, channel, seen.attempts.get(channel, {}), {*ready, *later})
        if len(set(ready)) != len(ready):
            yield f"duplicate: {len(ready) - len(set(ready))} for channel {channel}"
        yield from _order(ready, channel)


def _counts(topic: Topic, channel: str, attempts: Mapping[str, int], open_ones: set[str]) -> Iterator[str]:
    for name in sorted(topic.counted[channel].keys() & open_ones):
        least, most = topic.deliveries(channel, name)
        if not least <= (number := attempts.get(name, 0)) <= most:
            yield f"count: {number} deliveries of {name}, not {least} to {most}, for channel {channel}"


def _order(ready: Sequence[str], channel: str) -> Iterator[str]:
    last: dict[str, tuple[int, ...]] = {}
    for name in ready:
        producer, *place = name.split(":")
        at = tuple(map(int, place)) if all(part.isdecimal() for part in place) else ()
        if at < last.get(producer, ()):
            yield f"order: {name} comes late for channel {channel}"
        last[producer] = at
