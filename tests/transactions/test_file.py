"""The file of transactions: what it looks like, what it loses where it is cut or changed, what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import aiodq
from aiodq.format.columns import Columns
from aiodq.format.transactions import FIRST_BLOCK, Acks, Commit, Origin, Puts, decode_header
from aiodq.storage.offline.repair import repair_store
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.transactions.transaction_log import TRANSACTIONS, TransactionFile, read_transactions
from aiodq.storage.state.transactions.transaction_origins import ORIGINS, TransactionOrigins, read_origins
from aiodq.testing import Fault, FaultPlan, SimulatedFileSystem

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "v1" / "transactions"
GOLDEN_OF_OTHERS = GOLDEN.with_name("transactions-origins")
GOLDEN_ORIGINS = GOLDEN.with_name("origins")
PATH = f"/s/{TRANSACTIONS}"
NOW = 1_760_000_000_000_000_000
COMMITS = [
    Commit(
        [Acks("orders", "work", [(3, 4), (9, 12)])],
        [Puts("invoices", 7, Columns([b"one", b"two"], tags=["x", None]))],
    ),
    Commit([], [Puts("audit#ephemeral", 0, Columns([b""])), Puts("invoices", 9, Columns([b"large " * 20_000, b"x"]))]),
    Commit([Acks("orders", "work", [(5, 6)]), Acks("a.b-c_D", "default", [])]),
]

OF_OTHERS = [
    Commit([Acks("orders", "work", [(3, 4)])], [Puts("made", 7, Columns([b"one"]))], Origin((1 << 64) - 1, 1)),
    Commit([], [Puts("made", 8, Columns([b"two"]))], Origin(0, (5 << 40) + 3)),
    Commit([Acks("orders", "work", [(4, 5)]), Acks("orders", "late", [(9, 12)])], [], Origin(7, 1)),
    Commit([Acks("orders", "work", [(5, 6)])]),
    Commit([Acks("orders", "work", [(6, 7)])], [], Origin(7, 2)),
]
"""Those of clients of a shared store, and one of its owner's own."""


def written(*commits: Commit, groups: int = 1) -> SimulatedFileSystem:
    """Return a disk with these transactions, appended in so many groups."""
    fs = SimulatedFileSystem({"/s": None})
    file = TransactionFile(fs, "/s", NOW)
    size = -(-len(commits) // groups)
    for start in range(0, len(commits), size):
        file.append(commits[start : start + size], NOW)
    file.close()
    return fs


def content(fs: SimulatedFileSystem) -> bytes:
    data = fs.image()[PATH]
    assert data is not None
    return data


def changed(data: bytes) -> SimulatedFileSystem:
    return SimulatedFileSystem({"/s": None, "/s/LOCK": b"", PATH: data})


def found_in(fs: SimulatedFileSystem) -> list[Commit]:
    return [block.commit for block in read_transactions(fs, "/s").blocks]


def test_what_was_written_is_read() -> None:
    fs = written(*COMMITS, groups=2)
    found = read_transactions(fs, "/s")
    assert [block.commit for block in found.blocks] == COMMITS
    assert [block.number for block in found.blocks] == [NOW, NOW + 1, NOW + 2]
    assert found.damages == []


def test_the_golden_file_is_read_and_written_as_it_always_was() -> None:
    data = GOLDEN.read_bytes()
    assert found_in(changed(data)) == COMMITS
    assert content(written(*COMMITS, groups=3))[: len(data)] == data


def test_the_golden_file_of_a_shared_store_is_read_and_written_as_it_always_was() -> None:
    data = GOLDEN_OF_OTHERS.read_bytes()
    assert found_in(changed(data)) == OF_OTHERS
    assert content(written(*OF_OTHERS, groups=2))[: len(data)] == data


def test_without_anything_else_in_it_a_transaction_does_not_say_whose_it_is() -> None:
    assert found_in(written(Commit([], [], Origin(7, 1)), *COMMITS[:1])) == [Commit(), *COMMITS[:1]]


def test_whose_transactions_are_committed_is_kept_before_their_blocks_are_forgotten() -> None:
    fs = written(*OF_OTHERS)
    file = TransactionFile(fs, "/s", NOW)
    file.reset(NOW)
    file.close()
    image = fs.image()
    assert (found_in(fs), image[f"/s/{ORIGINS}"]) == ([], GOLDEN_ORIGINS.read_bytes())
    again = TransactionOrigins(fs, "/s", [], NOW)
    for origin in (Origin(7, 1), Origin(7, 2), Origin((1 << 64) - 1, 1), Origin(0, (5 << 40) + 3)):
        assert origin in again
    for origin in (Origin(7, 3), Origin(8, 1), Origin(0, 1), Origin(7, (1 << 40) + 1)):
        assert origin not in again


def test_a_lane_is_forgotten_that_has_been_silent_for_an_hour_or_behind_65536_others() -> None:
    fs = SimulatedFileSystem({"/s": None})
    origins = TransactionOrigins(fs, "/s", [], NOW)
    origins.keep(NOW)
    assert f"/s/{ORIGINS}" not in fs.image()
    for lane in range(65537):
        origins.note(Origin(7, (lane << 40) + 1), NOW)
    assert Origin(7, 1) not in origins
    assert Origin(7, (1 << 40) + 1) in origins
    minute, hour = 60 * 10**9, 3600 * 10**9
    for number in range(1, 60):
        origins.note(Origin(8, number), NOW + number * minute)
    origins.keep(NOW + hour)
    assert read_origins(fs, "/s") == [(Origin(8, 59), NOW + 59 * minute)]
    image = fs.image()
    origins.keep(NOW + 9 * hour)
    assert fs.image() == image, "nothing was new"


@pytest.mark.parametrize("hours", [2, -2])
def test_no_lane_is_forgotten_as_the_wall_clock_jumps(hours: int) -> None:
    fs, there = SimulatedFileSystem({"/s": None}), NOW + hours * 3600 * 10**9
    origins = TransactionOrigins(fs, "/s", [], NOW)
    origins.note(Origin(7, 1), NOW)
    for number in range(1, 10):
        origins.note(Origin(8, number), NOW if number % 2 else there)
        origins.keep(there)
    again = TransactionOrigins(fs, "/s", [Origin(9, 1)], there)
    again.keep(there)
    assert [origin for origin, _ in read_origins(fs, "/s")] == [Origin(7, 1), Origin(8, 9), Origin(9, 1)]


def test_cut_at_any_byte_it_loses_what_was_cut_and_nothing_else() -> None:
    small = [COMMITS[0], COMMITS[2], COMMITS[0]]
    fs = written(*small)
    data = content(fs)
    ends = [block.end for block in read_transactions(fs, "/s").blocks]
    for size in range(FIRST_BLOCK, ends[-1] + 1):
        cut = changed(data[:size])
        assert found_in(cut) == small[: sum(end <= size for end in ends)]
        assert not read_transactions(cut, "/s").damages
        file = TransactionFile(cut, "/s", NOW)
        if file.stale:
            file.reset(NOW)
        (number,) = file.append([COMMITS[2]], NOW)
        file.close()
        assert [block.number for block in read_transactions(cut, "/s").blocks] == [number]


def test_a_header_that_is_cut_short_or_wrong_is_damage_and_one_never_written_is_none() -> None:
    data = content(written(*COMMITS))
    for wrong in (data[: FIRST_BLOCK - 1], b"\1" + data[1:], data[:20] + b"\0\0\0\0" + data[24:]):
        found = read_transactions(changed(wrong), "/s")
        assert (found.header, found.blocks, len(found.damages)) == (None, [], 1)
    assert not read_transactions(changed(bytes(100)), "/s").damages


@pytest.mark.parametrize("lost", [0, 1])
def test_a_change_in_what_was_durable_is_damage_and_the_rest_is_read(lost: int) -> None:
    small = [COMMITS[0], COMMITS[2], COMMITS[0]]
    fs = written(*small, groups=3)
    data, blocks = content(fs), read_transactions(fs, "/s").blocks
    start = FIRST_BLOCK if lost == 0 else blocks[lost - 1].end
    for at in range(start, blocks[lost].end):
        broken = changed(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        found = read_transactions(broken, "/s")
        assert [block.commit for block in found.blocks] == small[:lost] + small[lost + 1 :]
        assert [damage.position for damage in found.damages] == [start]


@pytest.mark.parametrize("before", [0, 1])
def test_a_hole_in_a_group_that_was_never_synced_ends_it(before: int) -> None:
    small = [COMMITS[0], COMMITS[2], COMMITS[0]]
    fs = written(*small)
    data, start = content(fs), [FIRST_BLOCK, read_transactions(fs, "/s").blocks[0].end][before]
    found = read_transactions(changed(data[:start] + bytes(8) + data[start + 8 :]), "/s")
    assert [block.commit for block in found.blocks] == small[:before]
    assert found.damages == []
    assert found.following == NOW + 3


def test_emptied_it_holds_nothing_though_the_bytes_are_there() -> None:
    fs = written(*COMMITS[:1])
    file = TransactionFile(fs, "/s", NOW)
    assert file.stale
    before = decode_header(content(fs))
    file.reset(NOW)
    assert not file.stale
    after = decode_header(content(fs))
    assert after.first == before.first + 1
    assert after.salt != before.salt
    assert found_in(fs) == []
    file.append(COMMITS[2:], NOW)
    file.close()
    assert found_in(fs) == COMMITS[2:]


def test_emptied_it_gives_back_the_space_of_large_transactions() -> None:
    fs = written(Commit([], [Puts("made", 0, Columns([bytes(3 << 20)]))]))
    file = TransactionFile(fs, "/s", NOW)
    file.reset(NOW)
    assert (len(content(fs)), found_in(fs)) == (1 << 20, [])
    file.append(COMMITS, NOW)
    file.close()
    assert found_in(fs) == COMMITS


@pytest.mark.parametrize("short", [0, 10])
def test_a_file_of_which_it_is_unknown_how_it_begins_is_to_be_reset_again(short: int) -> None:
    fs = written(*COMMITS[:1])
    file = TransactionFile(fs, "/s", NOW)
    file.reset(NOW)
    file.append(COMMITS[1:], NOW)
    fs.plan = FaultPlan([Fault("write", 1, "ENOSPC", short=short)])
    with pytest.raises(aiodq.DiskFullError):
        file.reset(NOW)
    assert file.stale, "what would be appended behind it would not be found again"
    file.reset(NOW)
    assert not file.stale
    file.append(COMMITS[2:], NOW)
    file.close()
    assert found_in(fs) == COMMITS[2:]


def test_a_group_that_did_not_fit_is_gone_whole() -> None:
    fs = written(COMMITS[2])
    file = TransactionFile(fs, "/s", NOW)
    file.reset(NOW)
    fs.plan = FaultPlan([Fault("write", 1, "ENOSPC", short=150)])
    with pytest.raises(aiodq.DiskFullError):
        file.append([COMMITS[2], COMMITS[2], COMMITS[2]], NOW)
    assert found_in(fs) == []
    file.append([COMMITS[0]], NOW)
    assert found_in(fs) == [COMMITS[0]]
    file.close()


def test_a_group_that_did_not_fit_is_gone_whole_after_a_power_cut() -> None:
    fs = SimulatedFileSystem(written(COMMITS[2]).image(), record=True)
    file = TransactionFile(fs, "/s", NOW)
    file.reset(NOW)
    fs.plan = FaultPlan([Fault("write", 1, "ENOSPC", short=150)])
    with pytest.raises(aiodq.DiskFullError):
        file.append([COMMITS[2], COMMITS[2], COMMITS[2]], NOW)
    file.close()
    assert fs.trace is not None
    # The system may have written what it took before that was cut off.
    for at, image in fs.power_cuts(1, limit=40):
        assert at < len(fs.trace) or found_in(SimulatedFileSystem(image)) == []


def test_what_cannot_be_taken_back_stops_the_store() -> None:
    fs = written(COMMITS[2])
    file = TransactionFile(fs, "/s", NOW)
    file.reset(NOW)
    fs.plan = FaultPlan([Fault("write", 1, "ENOSPC", short=150), Fault("truncate", 1)])
    with pytest.raises(aiodq.StoreFailedError):
        file.append([COMMITS[2], COMMITS[2]], NOW)
    file.close()


def test_verify_tells_and_repair_sets_aside_and_leaves_a_file_without_damage() -> None:
    small = [COMMITS[0], COMMITS[2], COMMITS[0]]
    fs = written(*small, groups=3)
    data, first = content(fs), read_transactions(fs, "/s").blocks[0]
    broken = changed(data[: first.end + 9] + b"\xff" + data[first.end + 10 :])
    (damage,) = verify_store("/s", broken).damages
    assert (damage.path, damage.position) == (PATH, first.end)
    (action,) = repair_store("/s", broken)
    assert broken.image()[action.kept] == content(changed(data[: first.end + 9] + b"\xff" + data[first.end + 10 :]))
    assert found_in(broken) == [COMMITS[0], Commit(), COMMITS[0]]
    report = verify_store("/s", broken)
    assert report.ok
    assert [finding.severity for finding in report.findings] == ["note"]
    assert repair_store("/s", broken) == []


def test_repair_sets_a_file_without_header_aside() -> None:
    broken = changed(b"\1" + content(written(*COMMITS))[1:])
    (action,) = repair_store("/s", broken)
    assert PATH not in broken.image()
    assert action.kept in broken.image()
    assert verify_store("/s", broken).ok


async def test_an_owner_sets_aside_what_it_cannot_read_and_goes_on() -> None:
    broken = changed(b"\1" + content(written(*COMMITS))[1:])
    async with aiodq.open("/s", fs=broken) as store, store.transaction() as tx:
        tx.put("made", b"a")
    assert any("damaged" in path for path in broken.image())
    assert verify_store("/s", broken).ok
    async with aiodq.open("/s", fs=broken) as store:
        assert store.topic("made").end_offset == 1
