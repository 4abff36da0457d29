"""aiodq with one safeguard taken away. Whatever explores has to notice each, or it proves nothing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Final, TypeAlias
from unittest import mock

from aiodq.delivery.channel import ChannelState
from aiodq.engine.burial import DeadLetterOffice
from aiodq.engine.ioloop import IoLoop
from aiodq.engine.persister import MetadataPersister
from aiodq.engine.publisher import Publisher
from aiodq.engine.transactions import Committer
from aiodq.format.journal import OpKind, encode_checkpoint
from aiodq.storage import recovery
from aiodq.storage.atomic import replace_file, sync_directory, write_all
from aiodq.storage.journal import ChannelJournal
from aiodq.storage.log import TopicLog
from aiodq.testing import SimulatedFileSystem
from aiodq.testing.handles import SimulatedFile
from tests.proof.explore import Case, explore
from tests.proof.workloads import WORKLOADS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from aiodq.engine.burial import DeadLetter
    from aiodq.engine.intake import Intake
    from aiodq.engine.settling import Settling
    from aiodq.format.journal import ChannelImage, Op
    from aiodq.storage.contents import Contents
    from aiodq.storage.filesystem import File, FileSystem
    from aiodq.storage.segments import Segment
    from tests.proof.explore import Violation

Patch: TypeAlias = "AbstractContextManager[object]"

__all__ = ["MUTANTS", "Mutant", "mutant"]

_FEW: Final = (10, 20)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A safeguard, a patch that takes it away, and the workloads that rely on it."""

    name: str
    patch: Callable[[], Patch]
    workloads: tuple[str, ...]

    def found(self, workload: str, seeds: Iterable[int]) -> Violation | None:
        """Return the first violation that shows in one of its workloads under any of these seeds.

        A few moments are looked at first: most mutants show at many of them, and few only late in a trace.
        """
        with self.patch():
            for seed, moments in product(seeds, (*_FEW, 0)):
                case = Case(workload, seed, nested=1, lives=5, moments=moments)
                result = explore(case, WORKLOADS[workload], enough=1)
                if result.violations:
                    return result.violations[0]
        return None


MUTANTS: dict[str, Mutant] = {}


def mutant(*workloads: str) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Add a patch to those that have to be noticed in these workloads."""

    def add(patch: Callable[[], Patch]) -> Callable[[], Patch]:
        name = patch.__name__.replace("_", " ")
        MUTANTS[name] = Mutant(name, patch, workloads)
        return patch

    return add


@mutant("single puts")
def syncs_do_nothing() -> Patch:
    return mock.patch.object(SimulatedFile, "sync", return_value=None)


@mutant("single puts", "roll and retention")
def directories_are_not_synced() -> Patch:
    return mock.patch.object(SimulatedFileSystem, "sync_directory", return_value=None)


@mutant("many producers")
def puts_are_acknowledged_before_the_sync() -> Patch:
    def early(publisher: Publisher) -> None:
        while publisher.unsynced:
            publisher._publish(*publisher.unsynced.popleft())

    return mock.patch.object(Publisher, "synced", early)


@mutant("written while syncing")
def a_sync_counts_for_what_was_written_while_it_ran() -> Patch:
    sync = TopicLog.sync

    def too_much(log: TopicLog) -> None:
        sync(log)
        log.durable = log.end

    return mock.patch.object(TopicLog, "sync", too_much)


@mutant("puts and acks", "checkpoints")
def acks_are_told_before_the_sync() -> Patch:
    async def nothing(_: MetadataPersister, __: list[asyncio.Future[None]]) -> None:
        return

    return mock.patch.object(MetadataPersister, "_sync_journals", nothing)


@mutant("unsynced tails")
def a_torn_tail_is_left_in_place() -> Patch:
    cut = recovery._cut

    def leave(task: recovery._Task, file: File, contents: Contents) -> Segment:
        with mock.patch.object(SimulatedFile, "truncate", return_value=None):
            return cut(task, file, contents)

    return mock.patch.object(recovery, "_cut", leave)


@mutant("larger than a sector")
def checksums_are_ignored() -> Patch:
    return mock.patch.dict("aiodq.format.checksum._ALGORITHMS", {1: lambda _, __: 0})


@mutant("checkpoints", "reopening")
def a_checkpoint_is_overwritten_in_place() -> Patch:
    def overwrite(fs: FileSystem, path: str, data: bytes) -> None:
        file = fs.open(path, write=fs.exists(path), create=not fs.exists(path))
        file.truncate(0)
        write_all(file, [data], 0)
        file.sync()
        file.close()
        sync_directory(fs, path.rpartition("/")[0])

    return mock.patch("aiodq.storage.journal.replace_file", overwrite)


@mutant("checkpoints", "reopening")
def a_file_is_renamed_before_it_is_synced() -> Patch:
    return mock.patch("aiodq.storage.atomic.sync_file", return_value=None)


@mutant("checkpoints", "reopening")
def the_journal_is_emptied_before_the_checkpoint_stands() -> Patch:
    def fold(journal: ChannelJournal, image: ChannelImage) -> None:
        journal._generation += 1
        journal._begin(journal._file)
        journal.pending = 0
        with mock.patch.object(journal, "_generation", journal._generation):
            data = encode_checkpoint(image, journal._generation)
        from aiodq.storage.atomic import replace_file  # noqa: PLC0415 - the one that is not patched

        replace_file(journal._fs, journal._checkpoint, data)

    return mock.patch.object(ChannelJournal, "fold", fold)


@mutant("single puts", "many producers")
def the_watermark_is_noted_before_the_sync() -> Patch:
    sync = TopicLog.sync

    def early(log: TopicLog) -> None:
        log.durable = log.end
        log._note()
        sync(log)

    return mock.patch.object(TopicLog, "sync", early)


@mutant("roll and retention", "many producers")
def the_next_segment_begins_before_the_last_is_synced() -> Patch:
    return mock.patch("aiodq.storage.recovery.sync_file", return_value=None)


@mutant("a failed sync")
def what_a_failed_sync_forgot_is_not_written_again() -> Patch:
    return mock.patch("aiodq.storage.recovery.write_again", return_value=None)


@mutant("the first message")
def the_store_has_no_durable_name_before_its_topics() -> Patch:
    return mock.patch("aiodq.engine.opening.sync_directory", return_value=None)


@mutant("delays and requeues")
def a_due_time_is_kept_only_in_memory() -> Patch:
    taken = ChannelState.take_ops

    def forgetful(state: ChannelState, wall: int = 0, now: int = 0) -> list[Op]:
        return [op for op in taken(state, wall, now) if op.kind is not OpKind.DEFER]

    return mock.patch.object(ChannelState, "take_ops", forgetful)


@mutant("delays and requeues")
def a_checkpoint_has_no_due_times() -> Patch:
    image = ChannelState.image

    def without(state: ChannelState, wall: int = 0, now: int = 0) -> ChannelImage:
        return replace(image(state, wall, now), deferred={})

    return mock.patch.object(ChannelState, "image", without)


@mutant("delays and requeues")
def what_was_put_with_a_delay_is_not_looked_for_at_open() -> Patch:
    return mock.patch("aiodq.engine.opening.delayed", return_value=[])


@mutant("dead letters")
def a_dead_letter_is_settled_before_it_is_put() -> Patch:
    def hasty(
        office: DeadLetterOffice, letter: DeadLetter, intake: Intake, done: Callable[[Exception | None], None]
    ) -> None:
        done(None)
        send(office, letter, intake, lambda _: None)

    send = DeadLetterOffice.send
    return mock.patch.object(DeadLetterOffice, "send", hasty)


@mutant("seeking")
def a_seek_is_not_noted() -> Patch:
    taken = ChannelState.take_ops

    def forgetful(state: ChannelState, wall: int = 0, now: int = 0) -> list[Op]:
        return [op for op in taken(state, wall, now) if op.kind is not OpKind.SEEK]

    return mock.patch.object(ChannelState, "take_ops", forgetful)


@mutant("transactions")
def a_transaction_is_not_synced() -> Patch:
    return mock.patch("aiodq.storage.transactions.sync_file")


@mutant("transactions")
def what_was_committed_is_put_again_without_looking_whether_it_is_there() -> Patch:
    return mock.patch("aiodq.engine.opening.transactions_in", return_value=set())


@mutant("transactions")
def a_message_is_acked_before_it_is_durable() -> Patch:
    return mock.patch.multiple(IoLoop, secure=_at_once, sync_log=_at_once)


async def _at_once(_: object) -> None:
    """Wait for nothing."""


@mutant("transactions")
def transactions_are_forgotten_before_the_topics_hold_them() -> Patch:
    return mock.patch.object(IoLoop, "sync", _at_once)


@mutant("transactions among others")
def a_seek_does_not_wait_for_transactions() -> Patch:
    @asynccontextmanager
    async def at_once(_: Committer) -> AsyncIterator[None]:
        yield

    return mock.patch.object(Committer, "alone", at_once)


@mutant("checkpoints")
def what_is_acked_while_a_checkpoint_is_written_counts_as_in_it() -> Patch:
    fold = MetadataPersister._fold

    async def late(persister: MetadataPersister, outlet: Settling) -> None:
        await fold(persister, outlet)
        if outlet.state is not None:
            outlet.state.take_ops()

    return mock.patch.object(MetadataPersister, "_fold", late)


@mutant("channels come and go")
def a_channel_made_again_has_what_its_namesake_settled() -> Patch:
    return mock.patch("aiodq.engine.channels.remove_channel_files")


@mutant("bulk loads")
def staged_segments_are_moved_in_before_it_is_noted_where() -> Patch:
    adopt = TopicLog.adopt

    def hasty(log: TopicLog, staged: Sequence[tuple[str, int]], note: Callable[[int], None]) -> None:
        bases: list[int] = []
        adopt(log, staged, bases.append)
        note(bases[0])

    return mock.patch.object(TopicLog, "adopt", hasty)


@mutant("bulk loads")
def what_was_staged_is_committed_before_it_is_synced() -> Patch:
    return mock.patch("aiodq.storage.recovery.sync_file")


@mutant("bulk loads")
def what_was_begun_to_be_adopted_is_not_finished_at_open() -> Patch:
    return mock.patch("aiodq.engine.opening.finish_adoptions")


@mutant("bulk loads")
def a_commit_is_not_synced() -> Patch:
    def quick(fs: FileSystem, path: str, data: bytes) -> None:
        with mock.patch.object(SimulatedFileSystem, "sync_directory"), mock.patch.object(SimulatedFile, "sync"):
            replace_file(fs, path, data)

    return mock.patch("aiodq.storage.commits.replace_file", quick)
