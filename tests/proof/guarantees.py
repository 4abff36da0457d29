"""What aiodq guarantees, how far each guarantee is to be tried, and which tests of the suite try it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GUARANTEES", "Guarantee", "guarantee_of"]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A promise.

    Attributes:
        name: as the table has it.
        what: in a few words.
        tests: what pytest is given; each is run for one guarantee only.
        states: how many states after a power cut the exploration is to look at for it; for kills, those where a
            process was killed, and another one went on with what it wrote, before the power was cut.
    """

    name: str
    what: str
    tests: tuple[str, ...] = ()
    states: int = 0


GUARANTEES: tuple[Guarantee, ...] = (
    Guarantee(
        "G1",
        "acknowledged survives a power cut",
        (
            "tests/queue/test_restart.py",
            "tests/testing/test_disk.py",
            "tests/proof/test_repairs.py",
            "tests/proof/test_devices.py",
            "tests/transactions/test_recovery.py",
        ),
        states=20_000,
    ),
    Guarantee(
        "G2",
        "a sync acknowledges what it covers",
        (
            "tests/real/test_slow_disk.py::test_a_put_written_while_a_sync_runs_waits_for_the_next",
            "tests/system/test_live_loop.py::test_sync_under_way_does_not_acknowledge_what_came_later",
            "tests/system/test_live_loop.py::test_each_acknowledged_put_was_covered_by_a_sync",
        ),
        states=5_000,
    ),
    Guarantee(
        "G3",
        "SIGKILL anywhere",
        (
            "tests/system/test_sigkill.py",
            "tests/transactions/test_sigkill.py",
            "tests/real/test_syscalls.py::test_a_kill_at_a_system_call_loses_nothing",
            "tests/real/test_syscalls.py::test_a_kill_at_each_system_call_loses_nothing",
            "tests/fuzz/test_copies.py::test_a_killed_owner_leaves_no_damage",
            "tests/fuzz/test_copies.py::test_an_owner_killed_over_and_over_leaves_no_damage",
            "tests/proof/test_restarts.py",
        ),
        states=20_000,
    ),
    Guarantee("G4", "no resurrection after a durable ack", ("tests/queue/test_torture.py",), states=20_000),
    Guarantee(
        "G5",
        "order, no phantom, no duplicate",
        (
            "tests/queue/test_machine.py",
            "tests/delivery/test_channel_machine.py",
            "tests/storage/log/test_topic_log_model.py",
        ),
        states=20_000,
    ),
    Guarantee("G6", "a torn tail costs only itself", ("tests/storage/log/test_recovery.py",)),
    Guarantee("G7", "a power cut during recovery", (), states=2_000),
    Guarantee(
        "G8",
        "damage in the middle is isolated, reported",
        (
            "tests/storage/test_damage.py",
            "tests/storage/offline/test_verify.py",
            "tests/storage/offline/test_repair.py",
            "tests/transactions/test_file.py",
            "tests/fuzz/test_stores.py::test_a_flipped_bit_is_reported_and_costs_one_put",
            "tests/fuzz/test_stores.py::test_each_of_many_flipped_bits_is_reported_and_costs_one_put",
            "tests/fuzz/test_copies.py::test_a_copy_beside_the_owner_has_no_damage_when_promises_are_copied_first",
            "tests/fuzz/test_copies.py::test_many_copies_beside_the_owner_have_no_damage",
            "tests/fuzz/test_copies.py::test_repair_of_a_copy_in_any_order_loses_nothing_of_what_it_holds",
            "tests/fuzz/test_copies.py::test_repair_of_many_copies_loses_nothing_of_what_they_hold",
        ),
    ),
    Guarantee(
        "G9",
        "files missing, cut, swapped, foreign",
        (
            "tests/fuzz/test_stores.py::test_damage_of_any_sort_is_survived",
            "tests/fuzz/test_stores.py::test_much_damage_of_any_sort_is_survived",
            "tests/fuzz/test_stores.py::test_some_files_are_not_what_they_were",
            "tests/fuzz/test_stores.py::test_every_file_is_not_what_it_was",
            "tests/storage/state/test_format_versions.py",
        ),
    ),
    Guarantee(
        "G10",
        "hostile lengths and bytes",
        ("tests/format/test_hostile.py", "tests/fuzz/test_targets.py", "tests/fuzz/test_hunt.py"),
    ),
    Guarantee(
        "G11",
        "a failed sync",
        (
            "tests/proof/test_failed_syncs.py",
            "tests/real/test_syscalls.py::test_a_sync_that_fails_acknowledges_nothing_and_stops_the_store",
            "tests/real/test_syscalls.py::test_each_sync_that_fails_acknowledges_nothing_and_stops_the_store",
        ),
    ),
    Guarantee(
        "G12",
        "any other call that fails, short writes",
        (
            "tests/real/test_syscalls.py::test_a_call_that_fails_reaches_the_caller_or_is_harmless",
            "tests/real/test_syscalls.py::test_each_call_that_fails_reaches_the_caller_or_is_harmless",
            "tests/real/test_refusals.py::test_a_file_that_may_not_grow_takes_half_a_write_and_nothing_is_lost",
            "tests/queue/test_failures.py",
            "tests/faults/test_any_fault.py",
        ),
    ),
    Guarantee("G13", "a full disk", ("tests/real/test_full_disk.py",)),
    Guarantee(
        "G14",
        "read-only, no permission, no descriptors",
        (
            "tests/real/test_refusals.py::test_a_read_only_mount_is_refused_in_so_many_words_and_can_be_read",
            "tests/real/test_refusals.py::test_another_user_s_store_is_refused_and_stays_as_it_was",
            "tests/real/test_refusals.py::test_no_descriptor_is_left_by_failures_for_want_of_them",
            "tests/real/test_refusals.py::test_no_descriptor_is_left_by_a_thousand_failures_for_want_of_them",
            "tests/system/test_resources.py::test_no_descriptor_is_left_by_opening_and_closing",
            "tests/system/test_resources.py::test_no_descriptor_is_left_by_a_thousand_cycles",
            "tests/system/test_resources.py::test_no_descriptor_is_left_by_what_the_system_refuses",
            "tests/system/test_resources.py::test_no_descriptor_is_left_by_whatever_the_system_refuses",
            "tests/system/test_resources.py::test_too_few_descriptors_is_an_error_that_passes",
        ),
    ),
    Guarantee("G15", "one owner", ("tests/storage/io/test_lock.py",)),
    Guarantee("G16", "a clock that jumps", ("tests/real/test_clock.py",)),
    Guarantee(
        "G17",
        "cancellation at every step",
        (
            "tests/system/test_cancellation.py",
            "tests/system/test_schedules.py",
            "tests/system/test_simulated_schedules.py::test_simulated_schedules",
            "tests/system/test_simulated_schedules.py::test_a_thousand_simulated_schedules",
        ),
    ),
    Guarantee("G18", "loops that end, misuse", ("tests/system/test_misuse.py",)),
    Guarantee(
        "G19",
        "a slow disk, a live loop",
        (
            "tests/real/test_slow_disk.py::test_what_waits_for_a_slow_disk_is_bounded",
            "tests/system/test_live_loop.py::test_slow_sync_does_not_hold_up_the_loop",
            "tests/system/test_live_loop.py::test_slow_topic_does_not_hold_up_another",
            "tests/system/test_live_loop.py::test_what_waits_for_a_slow_disk_is_bounded",
            "tests/system/test_live_loop.py::test_time_running_out_is_no_acknowledgement",
            "tests/system/test_live_loop.py::test_busy_loop_does_not_starve_a_sync",
        ),
    ),
    Guarantee(
        "G20",
        "bounded memory",
        (
            "tests/system/test_resources.py::test_memory_does_not_grow_with_the_backlog",
            "tests/system/test_resources.py::test_memory_of_small_messages_is_counted_with_what_they_cost",
            "tests/system/test_resources.py::test_memory_of_opening_does_not_grow_with_the_backlog",
            "tests/system/test_resources.py::test_memory_with_two_gigabytes",
            "tests/system/test_resources.py::test_memory_with_many_small_messages",
            "tests/system/test_resources.py::test_opening_reads_the_ends_of_segments_and_nothing_between",
            "tests/storage/test_open_cost.py",
        ),
    ),
    Guarantee(
        "G21",
        "names, links, permissions",
        (
            "tests/queue/test_names.py",
            "tests/system/test_resources.py::test_nobody_else_may_read",
            "tests/system/test_resources.py::test_no_hostile_name_reaches_the_disk",
            "tests/system/test_resources.py::test_strange_names_are_names",
            "tests/system/test_resources.py::test_topic_named_as_the_lock_is_refused_in_time",
            "tests/system/test_resources.py::test_no_planted_link_is_followed",
        ),
    ),
    Guarantee(
        "G26",
        "a failure repeats from its seed",
        (
            "tests/system/test_simulated_schedules.py::test_a_failure_repeats_each_time",
            "tests/testing/test_loop.py::test_a_seed_gives_the_same_run_in_every_process",
        ),
    ),
    Guarantee(
        "G27",
        "an owner that is killed costs others nothing",
        (
            "tests/shared/test_failover.py::test_owners_are_killed_and_nothing_is_lost_or_doubled",
            "tests/shared/test_letters_killed.py",
            "tests/shared/test_order.py",
            "tests/shared/test_resume.py",
            "tests/shared/test_transactions_killed.py",
        ),
    ),
    Guarantee(
        "G28",
        "an owner that ends is not noticed",
        ("tests/shared/test_failover.py::test_owners_end_and_nobody_notices",),
    ),
    Guarantee(
        "G29",
        "one owner of a store that is shared",
        (
            "tests/shared/test_split_brain.py",
            "tests/shared/test_store_directory.py",
            "tests/shared/test_inherited.py",
            "tests/shared/test_trouble.py::test_an_owner_that_hangs_is_named_and_nobody_takes_over",
        ),
    ),
    Guarantee(
        "G30",
        "a process may say anything, and end anywhere",
        (
            "tests/fuzz/test_conversations.py",
            "tests/shared/test_strangers.py",
            "tests/shared/test_owner.py::test_whatever_a_client_sends_others_notice_nothing",
            "tests/wire/test_packets.py",
        ),
    ),
    Guarantee("G31", "one version beside the one before", ("tests/shared/test_versions.py",)),
    Guarantee(
        "G32",
        "a deletion or a change of options is whole",
        ("tests/queue/test_kept_options.py", "tests/shared/test_deleted.py", "tests/shared/test_deleted_since.py"),
        states=5_000,
    ),
    Guarantee(
        "G34",
        "a backup is the store as it was at one moment",
        ("tests/proof/test_backups.py", "tests/system/test_backup.py", "tests/shared/test_backup.py"),
    ),
)


def guarantee_of(test: str) -> Guarantee | None:
    """Return what a test is run for, by pytest's name of it."""
    plain = test.partition("[")[0]
    for guarantee in GUARANTEES:
        if any(plain == name or plain.startswith(f"{name}::") for name in guarantee.tests):
            return guarantee
    return None
