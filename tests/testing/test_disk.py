"""What a power cut may leave: small expectations by hand, and every state of small traces by brute force."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from aiodq.testing import (
    STALE,
    Disk,
    Dropped,
    Image,
    Made,
    Marked,
    Operation,
    Ordering,
    Removed,
    Renamed,
    Synced,
    Truncated,
    Wrote,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = 0
ORDERINGS: tuple[Ordering, ...] = ("posix", "ext4")
both = pytest.mark.parametrize("ordering", ORDERINGS)

Key = "tuple[tuple[str, bytes | None], ...]"


def made(node: int, name: str, parent: int = ROOT) -> Made:
    return Made(node, parent, name, directory=False)


def directory(node: int, name: str, parent: int = ROOT) -> Made:
    return Made(node, parent, name, directory=True)


def disk_after(operations: Iterable[Operation], ordering: Ordering) -> Disk:
    disk = Disk(ordering)
    for operation in operations:
        disk.apply(operation)
    return disk


def key(image: Image) -> Any:
    return tuple(sorted(image.items()))


def states(operations: Sequence[Operation], ordering: Ordering, limit: int = 400) -> set[Any]:
    """Return the different states that many random cuts leave."""
    return {key(image) for image in disk_after(operations, ordering).cuts(Random(1), limit)}


def least_and_most(operations: Sequence[Operation], ordering: Ordering) -> list[Image]:
    return list(disk_after(operations, ordering).cuts(Random(1), 2))


def durable(*operations: Operation) -> list[Operation]:
    """Return operations after all of which everything is durable."""
    nodes = [ROOT, *(operation.node for operation in operations if isinstance(operation, Made))]
    return [*operations, *(Synced(node, len(operations)) for node in nodes)]


# --- by hand


@both
def test_an_empty_disk_leaves_nothing_and_only_that(ordering: Ordering) -> None:
    disk = Disk(ordering)
    assert disk.settled
    assert list(disk.cuts(Random(1), 9)) == [{}]
    assert list(disk.cuts(Random(1), 0)) == []


@both
def test_a_name_that_was_not_synced_may_be_there_or_not(ordering: Ordering) -> None:
    assert states([made(1, "f")], ordering) == {(), (("/f", b""),)}


@both
def test_a_synced_name_is_never_lost(ordering: Ordering) -> None:
    assert states([made(1, "f"), Synced(ROOT, 1), made(2, "g")], ordering) == {
        (("/f", b""),),
        (("/f", b""), ("/g", b"")),
    }


@both
def test_the_first_state_is_the_least_and_the_second_the_most(ordering: Ordering) -> None:
    trace: list[Operation] = [
        *durable(made(1, "f"), Wrote(1, 0, b"old")),
        Wrote(1, 3, b" new"),
        made(2, "g"),
        Wrote(2, 0, b"x"),
    ]
    assert least_and_most(trace, ordering) == [{"/f": b"old"}, {"/f": b"old new", "/g": b"x"}]


@both
def test_marks_change_nothing(ordering: Ordering) -> None:
    disk = disk_after([made(1, "f"), Marked("promised")], ordering)
    assert disk.number == 2
    assert len(list(disk.cuts(Random(1), 2))) == 2


def test_syncing_a_file_does_not_sync_its_name_in_posix_but_in_ext4() -> None:
    trace: list[Operation] = [made(1, "f"), Wrote(1, 0, b"x"), Synced(1, 2)]
    assert states(trace, "posix") == {(), (("/f", b"x"),)}
    assert states(trace, "ext4") == {(("/f", b"x"),)}


def test_names_of_two_directories_are_independent_in_posix_and_in_order_in_ext4() -> None:
    base = durable(directory(1, "a"), directory(2, "b"))
    trace: list[Operation] = [*base, made(3, "x", 1), made(4, "y", 2)]
    a, b = ("/a", None), ("/b", None)
    x, y = ("/a/x", b""), ("/b/y", b"")
    assert states(trace, "posix") == {(a, b), (a, x, b), (a, b, y), (a, x, b, y)}
    assert states(trace, "ext4") == {(a, b), (a, x, b), (a, x, b, y)}
    assert states([*trace, Synced(2, len(trace))], "posix") == {(a, b, y), (a, x, b, y)}
    assert states([*trace, Synced(2, len(trace))], "ext4") == {(a, x, b, y)}


def test_a_file_in_a_lost_directory_is_lost_with_it() -> None:
    trace: list[Operation] = [directory(1, "d"), made(2, "f", 1), Wrote(2, 0, b"x"), Synced(2, 3), Synced(1, 3)]
    assert states(trace, "posix") == {(), (("/d", None), ("/d/f", b"x"))}
    assert states(trace, "ext4") == {(("/d", None), ("/d/f", b"x"))}


@both
def test_a_sync_covers_only_what_came_before_it_began(ordering: Ordering) -> None:
    base = durable(made(1, "f"))
    trace: list[Operation] = [*base, Wrote(1, 0, b"A"), Wrote(1, 1, b"B"), Synced(1, len(base) + 1)]
    assert {dict(state)["/f"] for state in states(trace, ordering)} >= {b"A", b"AB"}
    assert all(dict(state)["/f"].startswith(b"A") for state in states(trace, ordering))


@both
def test_a_rename_is_atomic(ordering: Ordering) -> None:
    base = durable(made(1, "old"), Wrote(1, 0, b"1"), made(2, "new"), Wrote(2, 0, b"2"))
    trace: list[Operation] = [*base, Renamed(2, ROOT, "new", ROOT, "old")]
    assert states(trace, ordering) == {(("/new", b"2"), ("/old", b"1")), (("/old", b"2"),)}


@both
def test_a_file_renamed_twice_has_one_name(ordering: Ordering) -> None:
    base = durable(made(1, "a"), Wrote(1, 0, b"1"))
    trace: list[Operation] = [*base, Renamed(1, ROOT, "a", ROOT, "b"), Renamed(1, ROOT, "b", ROOT, "c")]
    assert states(trace, ordering) == {((name, b"1"),) for name in ("/a", "/b", "/c")}


@both
def test_a_name_given_again_does_not_swallow_what_had_it_before(ordering: Ordering) -> None:
    """As when a temporary file is renamed over another, and the next one is made under its name."""
    base = durable(made(1, "new"), Wrote(1, 0, b"1"))
    trace: list[Operation] = [*base, Renamed(1, ROOT, "new", ROOT, "file"), made(2, "new")]
    assert states(trace, ordering) == {
        (("/new", b"1"),),
        (("/file", b"1"),),
        (("/file", b"1"), ("/new", b"")),
    }


@both
def test_a_rename_into_a_synced_directory_takes_along_what_was_there_before(ordering: Ordering) -> None:
    base = durable(directory(1, "a"), directory(2, "b"), made(3, "x", 1), Wrote(3, 0, b"x"))
    trace: list[Operation] = [*base, made(4, "y", 2), Removed(2, "y"), Renamed(3, 1, "x", 2, "y")]
    trace.append(Synced(1, len(trace)))
    assert states(trace, ordering) == {(("/a", None), ("/b", None), ("/b/y", b"x"))}


@both
def test_a_removed_file_comes_back_unless_the_directory_was_synced(ordering: Ordering) -> None:
    base = durable(made(1, "f"), Wrote(1, 0, b"x"))
    trace: list[Operation] = [*base, Removed(ROOT, "f")]
    assert states(trace, ordering) == {(), (("/f", b"x"),)}
    assert states([*trace, Synced(ROOT, len(trace))], ordering) == {()}


@both
def test_writing_to_a_file_without_a_name_is_no_matter(ordering: Ordering) -> None:
    base = durable(made(1, "f"), Removed(ROOT, "f"))
    assert states([*base, Wrote(1, 0, b"x"), Truncated(1, 9), Synced(1, 99)], ordering) == {()}


def test_truncation_is_lost_or_not_and_in_ext4_in_order_with_names() -> None:
    base = durable(made(1, "f"), Wrote(1, 0, b"12345"))
    trace: list[Operation] = [*base, Truncated(1, 2), made(2, "g")]
    cut, whole, g = ("/f", b"12"), ("/f", b"12345"), ("/g", b"")
    assert states(trace, "posix") == {(whole,), (cut,), (whole, g), (cut, g)}
    assert states(trace, "ext4") == {(whole,), (cut,), (cut, g)}


def test_a_sync_of_anything_takes_truncations_along_in_ext4_only() -> None:
    base = durable(made(1, "f"), Wrote(1, 0, b"12345"), made(2, "g"))
    trace: list[Operation] = [*base, Truncated(1, 2), Wrote(2, 0, b"x")]
    trace.append(Synced(2, len(trace)))
    assert states(trace, "posix") == {(("/f", b"12"), ("/g", b"x")), (("/f", b"12345"), ("/g", b"x"))}
    assert states(trace, "ext4") == {(("/f", b"12"), ("/g", b"x"))}


# --- bytes


SIZE = 9000


def contents(trace: Sequence[Operation], ordering: Ordering, limit: int = 600) -> set[bytes]:
    return {dict(state).get("/f") or b"" for state in states(trace, ordering, limit)}


@both
@pytest.mark.parametrize("sector", [512, 4096])
def test_a_write_tears_at_sectors(ordering: Ordering, sector: int) -> None:
    """Over old bytes any sector may be the old or the new one; nothing else may be."""
    base = durable(made(1, "f"), Wrote(1, 0, b"o" * SIZE))
    found = contents([*base, Wrote(1, 100, b"n" * (SIZE - 100))], ordering)
    assert all(len(data) == SIZE and data.startswith(b"o" * 100) for data in found)
    torn = [data for data in found if len(set(data[100:])) == 2]
    # From 100 on the first sector is a part of one.
    assert all(len(set(data[at : at + 512])) == 1 for data in torn for at in range(512, SIZE - 512, 512))
    assert len({data[100:512] for data in torn}) == 2
    if ordering == "posix" or sector == 512:
        starts = [100, *range(sector, SIZE, sector)]
        whole = [d for d in torn if all(len(set(d[at : at - at % sector + sector])) == 1 for at in starts)]
        # Three pieces of 4096 give six ways to be torn; pieces of 512 alone would seldom give all of them.
        assert len(whole) == (6 if sector == 4096 else len(torn))
        finer = [d for d in torn if len(set(d[512:4096])) == 2]
        assert finer


def test_appended_bytes_arrive_in_any_part_in_posix() -> None:
    base = durable(made(1, "f"), Wrote(1, 0, b"o" * 512))
    found = contents([*base, Wrote(1, 512, b"1" * 512), Wrote(1, 1024, b"2" * 512)], "posix")
    old, zeros, stale = b"o" * 512, bytes(512), (STALE * 512)[:512]
    assert {old, old + b"1" * 512, old + zeros + b"2" * 512, old + b"1" * 512 + b"2" * 512} <= found
    assert {old + zeros, old + stale} & found
    for data in found:
        assert data[:512] == old
        assert data[512:1024] in {b"", b"1" * 512, zeros, stale, (STALE * 512)[:512]}
        assert data[1024:] in {b"", b"2" * 512, zeros, stale, (STALE * 1024)[512:1024]}


def test_appended_bytes_arrive_from_the_front_in_ext4() -> None:
    base = durable(made(1, "f"), Wrote(1, 0, b"o" * 100))
    whole = b"o" * 100 + b"1" * 900 + b"2" * 900
    found = contents([*base, Wrote(1, 100, b"1" * 900), Wrote(1, 1000, b"2" * 900)], "ext4")
    assert all(whole.startswith(data) and len(data) >= 100 for data in found)
    assert {len(data) for data in found} > {100, 1000, 1900}


@both
def test_a_failed_sync_drops_and_the_next_covers_only_what_came_after(ordering: Ordering) -> None:
    base = durable(made(1, "f"), Wrote(1, 0, b"old"))
    trace: list[Operation] = [*base, Wrote(1, 3, b" lost")]
    trace += [Dropped(1, len(trace)), Wrote(1, 0, b"NEW")]
    disk = disk_after(trace, ordering)
    assert disk.content(1) == b"NEW"
    trace.append(Synced(1, len(trace)))
    assert states(trace, ordering) == {(("/f", b"NEW"),)}


# --- by brute force

TRACES: tuple[tuple[Operation, ...], ...] = (
    (made(1, "f"), Wrote(1, 0, b"A"), made(2, "g"), Wrote(2, 0, b"B")),
    (made(1, "f"), Wrote(1, 0, b"A"), Synced(1, 2), Renamed(1, ROOT, "f", ROOT, "g"), made(2, "f")),
    (made(1, "f"), Synced(ROOT, 1), Wrote(1, 0, b"AB"), Truncated(1, 1), Wrote(1, 1, b"C")),
    (directory(1, "d"), made(2, "f", 1), Synced(1, 2), Renamed(1, ROOT, "d", ROOT, "e"), Removed(1, "f")),
    (made(1, "f"), Synced(ROOT, 1), Removed(ROOT, "f"), made(2, "f"), Wrote(2, 0, b"B"), Synced(2, 5)),
    (
        directory(1, "d"),
        directory(2, "e"),
        made(3, "f", 1),
        Synced(ROOT, 3),
        Renamed(3, 1, "f", 2, "g"),
        made(4, "f", 1),
    ),
)


def legal(trace: Sequence[Operation], ordering: Ordering) -> set[Any]:
    """Return every state that may be left, for writes of less than a sector: built from the words of the model.

    A subset of the operations arrives: of each that was synced, all; of one name's changes, those before any that
    arrives; in ext4, of all names and truncations those before any.
    """
    found: set[Any] = set()
    numbers = range(len(trace))
    for choice in product((False, True), repeat=len(trace)):
        if all(choice[number] or not synced(trace, number, ordering) for number in numbers) and in_order(
            trace, choice, ordering
        ):
            found |= set(resulting(trace, choice, ordering))
    return found


def places(operation: Operation) -> set[tuple[int, str]]:
    match operation:
        case Made(_, parent, name, _) | Removed(parent, name):
            return {(parent, name)}
        case Renamed(_, parent, name, new_parent, new_name):
            return {(parent, name), (new_parent, new_name)}
    return set()


def synced(trace: Sequence[Operation], number: int, ordering: Ordering) -> bool:
    operation = trace[number]
    for later in trace:
        if not isinstance(later, Synced) or later.began <= number:
            continue
        names = places(operation) or isinstance(operation, Truncated)
        if isinstance(operation, Wrote | Truncated) and operation.node == later.node:
            return True
        if names and (ordering == "ext4" or later.node in {parent for parent, _ in places(operation)}):
            return True
    return False


def in_order(trace: Sequence[Operation], choice: Sequence[bool], ordering: Ordering) -> bool:
    for later in range(len(trace)):
        if not choice[later]:
            continue
        for earlier in range(later):
            journaled = (isinstance(trace[n], Truncated) or places(trace[n]) for n in (earlier, later))
            if not choice[earlier] and (
                places(trace[earlier]) & places(trace[later]) or (ordering == "ext4" and all(journaled))
            ):
                return False
    return True


def resulting(trace: Sequence[Operation], choice: Sequence[bool], ordering: Ordering) -> Iterator[Any]:
    """Yield the state, and those where of a lost write only the size arrived (posix), or its first bytes (ext4)."""
    lost = {n: step for n, step in enumerate(trace) if not choice[n] and isinstance(step, Wrote)}
    remains = [
        [step.data[:size] for size in range(len(step.data))] if ordering == "ext4" else [b"", b"\0", STALE]
        for step in lost.values()
    ]
    for filling in product(*remains):
        fill = dict(zip(lost, filling, strict=True))
        names: dict[int, dict[str, int]] = {ROOT: {}}
        files: dict[int, bytes] = {}
        for number, operation in enumerate(trace):
            match operation:
                case Made(node, _, _, is_directory):
                    (names.__setitem__(node, {}) if is_directory else files.__setitem__(node, b""))
                case Wrote(node, position, data):
                    files[node] = written(files[node], position, data, choice[number], fill.get(number, b""))
                case Truncated(node, size) if choice[number]:
                    files[node] = files[node][:size].ljust(size, b"\0")
            if choice[number]:
                renamed(names, operation)
        yield key(dict(listing(names, files, ROOT, "")))


def written(old: bytes, position: int, data: bytes, arrived: bool, fill: bytes) -> bytes:
    if not arrived and data.startswith(fill):
        data = fill if position <= len(old) else b""
    elif not arrived:
        missing = max(position + len(data) - len(old), 0)
        return old + (fill * (missing + 1))[:missing]
    return old[:position].ljust(position if data else 0, b"\0") + data + old[position + len(data) :]


def renamed(names: dict[int, dict[str, int]], operation: Operation) -> None:
    match operation:
        case Made(node, parent, name, _):
            names[parent][name] = node
        case Removed(parent, name):
            names[parent].pop(name, None)
        case Renamed(node, parent, name, new_parent, new_name):
            names[parent].pop(name, None)
            names[new_parent][new_name] = node


def listing(
    names: dict[int, dict[str, int]], files: dict[int, bytes], at: int, path: str
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in names[at].items():
        yield f"{path}/{name}", files.get(node)
        if node in names:
            yield from listing(names, files, node, f"{path}/{name}")


@both
@pytest.mark.parametrize("trace", TRACES)
def test_every_state_is_legal_and_the_least_and_the_most_are_among_them(
    trace: tuple[Operation, ...], ordering: Ordering, record_property: Callable[[str, object], None]
) -> None:
    trials = 0
    for length in range(len(trace) + 1):
        part = trace[:length]
        allowed = legal(part, ordering)
        found = states(part, ordering)
        trials += len(found)
        assert found <= allowed
        assert {key(image) for image in least_and_most(part, ordering)} <= found
        assert len(found) * 3 >= len(allowed), "most of what may be is never tried"
    record_property("trials", trials)


@both
def test_the_same_seed_gives_the_same_states(ordering: Ordering) -> None:
    base = durable(made(1, "f"), Wrote(1, 0, b"o" * SIZE))
    disk = disk_after([*base, Wrote(1, 100, b"n" * SIZE), made(2, "g"), Truncated(1, 50)], ordering)
    assert list(disk.cuts(Random(7), 50)) == list(disk.cuts(Random(7), 50)) != list(disk.cuts(Random(8), 50))
