"""The step of a bulk writer, which stages messages beside the store and commits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiodq.format.columns import Columns
from aiodq.names import is_ephemeral
from aiodq.storage.bulk.commits import Commit, CommitKey, commit_staged, read_commits
from aiodq.storage.bulk.staging import StagingWriter
from tests.model.living import crash, kill_owner, reopen, replace_member
from tests.model.model import Sent
from tests.model.putting import TAGS, learned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.model.run import Run

__all__ = ["load"]

_REPEATED: Final = 0.3
"""How many of the loads have a key that was committed before."""

_ENDED: Final = 0.4
"""How many of the loads are committed before somebody ends."""


async def load(run: Run) -> None:
    """What is committed comes once, as it was staged, whoever ends meanwhile, and however often it is repeated."""
    targets = [
        topic
        for topic in run.topics.values()
        if not (topic.bounded or topic.lossy or is_ephemeral(topic.name) or topic.letters)
    ]
    if not targets:
        return
    some = run.rng.sample(targets, min(len(targets), run.rng.randint(1, 3)))
    groups = {topic.name: [_drawn(run) for _ in range(run.rng.randint(1, 6))] for topic in some}
    repeated = bool(run.loaded) and run.rng.random() < _REPEATED
    key = run.rng.choice(run.loaded) if repeated else _new_key(run)
    run.say("load", key, {name: [sent.body[:8] for sent in group] for name, group in groups.items()})
    counts = _commit(run, key, groups)
    assert counts is not repeated, f"{key} {'counts' if counts else 'does not count'}"
    if repeated:
        return
    if not key.once:
        run.loaded.append(key)
    for name, group in groups.items():
        run.topics[name].loaded += group
    if run.rng.random() < _ENDED:
        await run.rng.choice((reopen, crash, crash, replace_member, kill_owner))(run)
    await _adopted(run, groups)


def _drawn(run: Run) -> Sent:
    """Return a message; a bulk load has none with a delay or a time to live."""
    return Sent(run.body(), run.rng.choice(TAGS))


def _new_key(run: Run) -> CommitKey:
    number = len(run.loaded)
    alone = CommitKey(f"job {run.bodies}"), CommitKey(f"once {run.bodies}", once=True)
    return run.rng.choice((CommitKey("stream", number), *alone))


def _commit(run: Run, key: CommitKey, groups: Mapping[str, Sequence[Sent]]) -> bool:
    """Stage messages, and commit them; return whether that counts."""
    disk, clock, path = run.world.disk, run.world.clock, run.world.path
    writer = StagingWriter(disk, clock, path, key.name, segment_bytes=run.rng.choice((500, 2000, 100_000)))
    for name, group in groups.items():
        writer.put(name, Columns([sent.body for sent in group], tags=[sent.tag for sent in group]))
    staged = {name: tuple(files) for name, files in writer.finish().items()}
    return commit_staged(disk, path, Commit(key, staged, clock.now_ns()))


async def _adopted(run: Run, groups: Mapping[str, list[Sent]]) -> None:
    async def nothing_waits() -> None:
        waiting = read_commits(run.world.disk, run.world.path).pending
        assert not waiting, f"{waiting} are not taken over"

    await run.until(nothing_waits)
    for name, group in groups.items():
        topic = run.topics[name]
        await learned(run, topic)
        assert not topic.loaded, f"{name} lacks {topic.loaded}"
        first = next(offset for offset, sent in topic.log.items() if sent == group[0])
        there = [topic.log.get(first + number) for number in range(len(group))]
        assert there == group, f"{name} has {there}, not {group}"
