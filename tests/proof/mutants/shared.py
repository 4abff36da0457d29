"""One store and many processes: which put is known, who is asked in which order, and what is in whose hands."""

from __future__ import annotations

from unittest import mock

from aiodq.engine.channel.acks.undeliverable import Undeliverable
from aiodq.engine.committing.group_committer import Committer
from aiodq.engine.loop.worker_threads import WorkerThreads
from aiodq.engine.topic.effective_options import EffectiveOptions
from aiodq.engine.topic.retention.overflow import Overflow
from aiodq.engine.topic.topic_engine import TopicEngine
from aiodq.shared.connection.finding import inherited
from aiodq.shared.connection.finding.store_directory import StoreDirectory
from aiodq.shared.connection.link import Link
from aiodq.shared.connection.sent.sent_puts import TopicPuts
from aiodq.shared.consuming.demand import Demand
from aiodq.shared.consuming.holdings import Holdings
from aiodq.shared.consuming.remote_channel import RemoteChannel
from aiodq.shared.consuming.remote_settlement import RemoteSettlement
from aiodq.shared.encoding.number_runs import NumberRuns
from aiodq.shared.requests.client_puts import ClientPuts
from aiodq.shared.requests.client_transactions import ClientTransactions
from aiodq.shared.requests.lending import Lending
from aiodq.shared.requests.lent.lent_messages import LentMessages
from aiodq.shared.requests.lent.lent_runs import LentRun
from aiodq.shared.requests.lent_settlement import LentSettlement
from aiodq.shared.requests.owner_state.made_changes import MadeChanges
from aiodq.shared.requests.resuming import Resuming
from aiodq.shared.server.early_answers import EarlyAnswers
from aiodq.shared.server.open_handles import OpenHandles
from aiodq.shared.server.owner import Owner
from aiodq.shared.server.session import Session
from aiodq.storage.io.lock import StoreLock
from aiodq.storage.log.active_segment import ActiveSegment
from aiodq.storage.state.channel_journal import ChannelJournal
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.storage.state.transactions.transaction_log import TransactionFile
from aiodq.storage.state.transactions.transaction_origins import TransactionOrigins
from tests.proof.mutants.registry import Patch, change, mutant

_OWNER = "tests/shared/test_owner.py"
_FULL = "tests/shared/test_full.py"
_LENDING = "tests/shared/test_lending.py"
_ORDER = "tests/shared/test_order.py"
_TRANSACTIONS = "tests/shared/test_transactions.py"
_REPEATED = "tests/shared/test_repeated.py::test_a_repeated_change_undoes_nothing_that_another_process_changed_since"

change(
    "puts that may come again are forgotten at a new segment",
    ActiveSegment._controls,
    "if producers is not None and producers.puts and first == self.segment.base:",
    "if producers is not None and first < 0:",
    test="tests/storage/log/test_producer_table.py::test_a_segment_begins_with_who_was_known_however_it_begins",
)
change(
    "puts that waited for an owner come after newer ones",
    TopicPuts.repeat,
    "self._send(sequence, put)",
    "__import__('asyncio').get_running_loop().call_later(0.5, self._send, sequence, put)",
    test=f"{_ORDER}::test_what_waited_is_put_before_anything_newer_and_in_its_order",
)
change(
    "puts that waited for an owner come in another order",
    TopicPuts.repeat,
    "for sequence, put in list(self.pending.items()):",
    "for sequence, put in reversed(list(self.pending.items())):",
    test=f"{_ORDER}::test_what_waited_is_put_before_anything_newer_and_in_its_order",
)
change(
    "a put that nobody waits for any more is stored by the next owner",
    TopicPuts.repeat,
    "ended = [self.pending.pop(sequence) for sequence in gone]",
    "ended = []",
    test=f"{_ORDER}::test_a_put_that_is_given_up_is_repeated_as_long_as_somebody_waits_for_it",
)
change(
    "a put that was withdrawn waits for room again",
    ClientPuts.withdraw,
    "self._withdrawn.add(key)",
    "self._withdrawn.discard(key)",
    test=f"{_FULL}::test_only_what_waits_is_withdrawn_and_by_who_put_it",
)
change(
    "options that somebody has changed since are named again to the next owner",
    EffectiveOptions.named_again,
    "holding(None, self._stored(), options)",
    "options",
    test="tests/shared/test_reopening.py::test_a_topics_options_that_were_changed_since_hold_with_the_next_owner",
)
change(
    "an operation does not wait for what was accepted before it",
    ClientPuts.settled,
    "if underway or moving:",
    "if underway and not moving and underway is None:",
    test=f"{_FULL}::test_an_operation_comes_after_what_was_accepted_before",
)
change(
    "an owner is found before it knows what was put",
    Owner.start,
    "await self.engine.threads.call(_recall, logs)",
    "self._listening = listen(self.engine.path)\n    await self.engine.threads.call(_recall, logs)",
    test=f"{_ORDER}::test_nobody_finds_an_owner_that_does_not_know_yet_what_was_put",
)
change(
    "a thread answers a put before it has synced it",
    WorkerThreads._work,
    "    try:\n        result = function()",
    "    if errand.then is not None:\n        errand.then()\n    try:\n        result = function()",
    "puts of clients",
)
change(
    "a thread answers a put whose sync has failed",
    WorkerThreads._work,
    " and error is None",
    "",
    test="tests/shared/test_early_answers.py::test_nothing_is_answered_early_of_which_the_sync_failed",
)
change(
    "who was told by a thread asks before the loop knows",
    Session.receive,
    "self._owner.engine.threads.tell_ended()",
    "None",
    test="tests/shared/test_early_answers.py::test_whoever_was_told_early_finds_the_put_in_whatever_is_asked_next",
)
change(
    "whoever hears of a put that a thread told of asks before the loop knows",
    TopicEngine.note_synced,
    "self.put_buffer.pending and",
    "False and",
    test="tests/shared/test_early_answers.py::test_whoever_hears_from_a_client_that_was_told_early_finds_the_put_in_the_owner",
)
change(
    "a thread and the loop send over one socket at once",
    EarlyAnswers.forbid,
    "self._allowed = False",
    "None",
    test="tests/shared/test_early_answers.py::test_a_thread_sends_only_while_it_may",
)
change(
    "what a client holds since an owner before is not left to it",
    Resuming._grant,
    "if state is None or moved",
    "if state is None or seen or moved",
    test="tests/shared/test_modes.py::test_an_owner_that_closes_hands_over",
)
change(
    "a message is settled by what an owner before has delivered",
    LentMessages.place_of,
    "if epoch == self._epoch else None",
    "",
    test=f"{_OWNER}::test_what_a_client_does_not_hold_it_cannot_settle",
)
change(
    "a message is acked by what an owner before has delivered",
    LentMessages.held,
    "if epoch != self._epoch:",
    "if epoch < 0:",
    test=f"{_OWNER}::test_what_a_client_does_not_hold_it_cannot_settle",
)
change(
    "who is back is not heard to the end",
    Resuming.end,
    "if not self.under_way:",
    "if self is not None:",
    test=f"{_OWNER}::test_who_is_back_has_said_all_that_it_holds",
)
change(
    "an owner goes on giving what is not wanted any more",
    Lending.want,
    "self._withdrawn = self._getting is not None and not self._getting.cancel()",
    "None",
    test=f"{_OWNER}::test_no_more_is_given_than_is_wanted_and_a_want_can_be_withdrawn",
)
change(
    "who withdraws what it wants is given nothing any more",
    Lending._wait,
    "not self._task.cancelling()",
    "self._wanted <= self._given",
    test=f"{_OWNER}::test_what_is_withdrawn_and_wanted_again_at_once_is_given",
)
change(
    "a client goes on wanting what nobody waits for",
    Demand.withdraw,
    "if self.wanted > wanted and",
    "if self is None and",
    test="tests/shared/test_modes.py::test_who_does_not_wait_any_more_has_nothing_sent",
)
change(
    "after a crash messages are delivered before those who hold them were heard",
    Owner._hold_back,
    "channel_engine.reclaim(under_way=under_way)",
    "None",
    test=f"{_OWNER}::test_after_a_crash_nothing_is_delivered_before_those_who_hold_it_were_heard",
)
change(
    "a transaction that comes again is not known",
    Committer.knows,
    "origin in self._file.origins",
    "False",
    test=f"{_TRANSACTIONS}::test_one_that_comes_again_counts_once_by_any_connection_and_any_owner",
)
change(
    "a transaction that comes again while it is under way is begun again",
    ClientTransactions._under_way,
    "self._owner.transacting.get(origin) or ",
    "",
    test=f"{_TRANSACTIONS}::test_one_that_comes_again_while_it_waits_for_room_counts_once",
)
change(
    "whose transactions are committed is forgotten with their blocks",
    TransactionFile.reset,
    "self.origins.keep(now_ns)",
    "None",
    test=f"{_TRANSACTIONS}::test_it_counts_once_after_the_file_of_transactions_was_emptied_and_the_owner_killed",
)
change(
    "an owner does not know which transactions the transaction log holds",
    TransactionOrigins.__init__,
    "self.note(origin, now_ns)",
    "None",
    test="tests/transactions/test_origins.py::test_whenever_the_power_is_cut_what_is_said_again_is_done_once",
)
change(
    "a client is told of its acks before they are on disk",
    Lending.commit,
    "return self._channel_engine.commit()",
    "told = asyncio.get_running_loop().create_future(); told.set_result(self._channel_engine.commit()); return told",
    "work of clients",
)
change(
    "a seek that is repeated to the next owner counts twice",
    ChannelJournal._fold,
    "for number in sought",
    "for number in ()",
    test=f"{_REPEATED}[asyncio-next-seek]",
)
change(
    "a change that is repeated to the next owner counts twice",
    TopicDescription._with,
    "if change else",
    "if False else",
    test=f"{_REPEATED}[asyncio-next-pause]",
)
change(
    "a change that is repeated to the same owner counts twice",
    MadeChanges._remember,
    "self._made[number] = task",
    "None",
    test=f"{_REPEATED}[asyncio-same-seek]",
)
change(
    "a transaction does without a message that was taken away",
    RemoteSettlement.acks,
    "for missing in self.holdings.missing(each)",
    "for missing in ()",
    test=f"{_TRANSACTIONS}::test_one_whose_message_an_owner_in_between_has_given_to_somebody_else_fails",
)
change(
    "the messages of a transaction that failed are in nobody's hands",
    LentMessages.keep,
    "self.add(part)",
    "None",
    test=f"{_TRANSACTIONS}::test_a_full_topic_refuses_it_and_nothing_is_done",
)
change(
    "what a transaction left is not in hand again where its neighbours are",
    NumberRuns.restore,
    "run.marks[start:stop] = bytes([HERE]) * (stop - start)",
    "None",
    test=f"{_LENDING}::test_what_a_transaction_leaves_is_in_hand_again_amid_its_neighbours",
)
change(
    "what an owner answers is taken for what it should be",
    Link.result,
    'return understood(read, answer.get("result"), name)',
    'return read(answer.get("result"))',
    test="tests/shared/test_strangers.py::test_a_store_described_wrongly_is_refused_in_words",
)
change(
    "a run is acked whole though some of it was taken away",
    LentRun.in_flight,
    "return there == count or is_held(self.lease, first, count)",
    "return True",
    test="tests/shared/test_together.py::test_of_what_is_acked_together_only_what_was_taken_away_is_refused",
)
change(
    "what a client settles of what is redelivered is forgotten in the tail, too",
    Lending._take_run,
    "list(again[1])",
    "again[1]",
    test=f"{_LENDING}::test_what_a_client_settles_of_what_has_timed_out_stays_in_the_tail_for_others",
)
change(
    "of what is given back together nothing is ready where some was taken away",
    LentMessages.held,
    "for run, start, stop in self.parts(range(delivery, delivery + count)):",
    "for run, start, stop in self.parts(range(delivery, delivery + count)) if count <= len(self) else ():",
    test=f"{_LENDING}::test_of_what_is_given_back_together_the_rest_is_ready_though_some_was_taken_away",
)
change(
    "what is being settled is settled a second time",
    Holdings.take,
    "in marked_ranges(run.marks, start, stop, _FREE):",
    "in marked_ranges(run.marks, start, stop):",
    test="tests/shared/test_holdings.py::test_what_somebody_is_about_to_settle_is_taken_by_nobody_else",
)
change(
    "what a transaction is about to settle is acked beside it",
    Holdings.take,
    "run.part(first, last)",
    "None",
    test="tests/shared/test_together.py::test_what_a_transaction_is_about_to_settle_is_not_acked_by_its_mark",
)
change(
    "what was taken away is acked all the same",
    Holdings.drop,
    "run.part(start, stop)",
    "None",
    test="tests/shared/test_together.py::test_what_was_taken_away_is_not_acked_by_its_mark",
)
change(
    "what is delivered before an owner says what is held is taken for what it did not leave",
    RemoteSettlement.resumed,
    "self.holdings.renumber(given, self._asked)",
    "self.holdings.renumber(given, self._number)",
    test="tests/shared/test_resume.py::test_what_comes_before_an_owner_has_said_what_is_held_stays_in_hand",
)
change(
    "the next owner does not hear of those who have not come back to this one",
    Owner._note_clients,
    "those = self._expected | {",
    "those = {",
    test=f"{_OWNER}::test_who_has_not_come_back_is_known_to_the_next_owner_too",
)
change(
    "what the process of an owner holds whose store has failed is given to others",
    Owner._note_clients,
    "self.engine.failure is None",
    "True",
    test="tests/shared/test_trouble.py::test_what_an_owner_has_in_hand_stays_there_when_its_store_fails",
)
change(
    "who could not be noted is not waited for after an owner that closed",
    Owner._end_listening,
    "leave=not self._noting.certain",
    "leave=False",
    test=f"{_OWNER}::test_who_could_not_be_noted_is_waited_for_after_an_owner_that_closed",
)
change(
    "what is in hand as an owner closes does not count if its holder is gone before the next one",
    LentSettlement.give_back,
    "self._owner.closing or ",
    "",
    test="tests/shared/test_given_up.py::test_what_is_in_hand_counts_where_the_owner_closes_before_its_holder",
)
change(
    "who comes back as an owner closes has it give up what it keeps for the next one",
    Owner._end_reclaiming,
    " and not self.closing:",
    ":",
    test=f"{_OWNER}::test_who_comes_back_as_the_owner_closes_has_nothing_given_up",
)
change(
    "who lives and is late is not waited for",
    Owner._look_for_late,
    "if lives(pid)",
    "if pid < 0",
    test=f"{_OWNER}::test_who_is_late_is_waited_for_as_long_as_it_lives",
)
change(
    "a forked child keeps its parent's connections",
    inherited._let_go_in_child,
    "os.dup2(nothing, number, inheritable=False)",
    "None",
    test="tests/shared/test_inherited.py::test_the_other_end_sees_it_go_and_its_number_stays_in_use",
)
change(
    "an owner goes on in the directory that has its own's name by now",
    StoreLock.in_place,
    "os.path.samestat(os.fstat(self._directory_fd), os.stat(self.directory))",
    "True",
    test="tests/shared/test_split_brain.py::test_a_directory_that_has_another_name_by_now_is_another_store",
)
change(
    "a renamed store is made anew under its old name",
    StoreDirectory.check,
    "if self._seen is None:",
    "if self is not None:",
    test="tests/shared/test_split_brain.py::test_a_directory_that_is_gone_is_not_made_anew",
)
change(
    "a put that comes again after a kill is put again",
    ClientPuts._place,
    "if known is not None:",
    "if known is not None and known.start < 0:",
    "puts of clients",
    kills=True,
)
change(
    "an owner that shares nothing forgets whose transactions were committed before",
    TransactionOrigins.__init__,
    "in self._saved()",
    "in ()",
    test=f"{_TRANSACTIONS}::test_it_counts_once_after_the_file_of_transactions_was_emptied_and_the_owner_killed",
)


@mutant(test="tests/transactions/test_origins.py::test_whenever_the_power_is_cut_what_is_said_again_is_done_once")
def whose_transactions_are_committed_is_kept_once_their_blocks_are_forgotten() -> Patch:
    reset = TransactionFile.reset

    def late(file: TransactionFile, now_ns: int) -> None:
        with mock.patch.object(file.origins, "keep"):
            reset(file, now_ns)
        file.origins.keep(now_ns)

    return mock.patch.object(TransactionFile, "reset", late)


change(
    "who waits for a message that cannot be read waits for ever",
    Lending._report,
    "self._ended.set_result(error)",
    "None",
    test="tests/shared/test_rare.py::test_one_who_waits_is_told_of_it_and_the_others_get_what_there_is",
)
change(
    "what had its last attempt is given up before those who hold it were heard",
    Undeliverable._settle_some,
    "or channel.reclaiming or channel.held:",
    "or channel.held:",
    test="tests/shared/test_trouble.py::"
    "test_a_last_attempt_is_not_given_up_while_its_holder_lives_though_its_owner_is_killed",
)
IN_HAND = "tests/shared/test_modes.py::test_what_"
change(
    "what outlived its time in a hand is given up by an owner that ends",
    Owner.close,
    "self._hold_back(under_way=True)",
    "None",
    test=IN_HAND + "outlives_its_time_in_a_hand_stays_there_when_the_owner_ends",
)
change(
    "what was touched for long is kept by the next owner as what was not",
    RemoteSettlement.resumed,
    "self._timeouts.again()",
    "None",
    test=IN_HAND + "was_touched_for_long_is_kept_for_as_long_when_the_owner_ends",
)
change(
    "what may be in a hand is dropped for room by a new owner",
    Overflow.may_drop,
    "not (self._host.reclaiming and retaining_channels(self._engine))",
    "True",
    test=IN_HAND + "is_in_a_hand_is_not_dropped_for_room_when_the_owner_ends",
)
change(
    "who put what is forgotten where a segment is sealed for the next owner",
    ActiveSegment.stage_end,
    "producers.rows()",
    "[]",
    test="tests/storage/log/test_producer_table.py::test_who_owns_the_log_next_finds_by_a_footer_what_others_put",
)
change(
    "an owner keeps what it lent of a channel that was deleted",
    OpenHandles._is_deleted,
    "del self.lendings[handle]",
    "None",
    test="tests/shared/test_deleted.py::test_of_a_channel_that_was_deleted_an_owner_keeps_neither_bodies_nor_tasks",
)
change(
    "what was taken away before anybody took it is handed out",
    RemoteChannel._sift,
    "self._ready.keep(self.holdings.free_of)",
    "None",
    test="tests/shared/test_deleted.py::test_what_was_taken_away_before_anybody_took_it_is_not_handed_out",
)
change(
    "what came before the channel got other tags is handed out",
    RemoteChannel._sift,
    "[] if self.options.tags is None else self._ready.without(self.options.tags)",
    "[]",
    test="tests/shared/test_changes.py::test_what_is_here_and_not_taken_is_not_handed_out_once_it_has_none_of_the_tags",
)
change(
    "an entry of the index begins amid a put that is written at once",
    ActiveSegment._before,
    "if apart or (",
    "if (",
    test="tests/storage/log/test_producer_table.py::test_a_put_that_is_written_at_once_is_the_same_as_one_in_steps",
)
change(
    "a message is delivered before the next owner can know of its holder",
    Lending.settled_in,
    "await self._owner.noted()",
    "None",
    test="tests/shared/test_slow_disk.py::test_who_begins_to_get_messages_holds_up_nobody_while_the_disk_is_slow_to_note_it",
)
