"""Whole stores, damaged: every error is aiodq's own, nothing wrong comes out, nothing whole is lost, all of it is told.

`trial.check_trial` says what must hold; here stands what is done to the files.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from aiodq.storage.log.topic_log import LogOptions, TopicLog
from aiodq.storage.offline.verify import verify_store
from aiodq.storage.state.watermark import SLOT_FILE_BYTES
from aiodq.testing import FakeClock, SimulatedFileSystem
from tests.fuzz.damage import damage
from tests.fuzz.stores import SLOT_BYTES, SLOT_STRIDE, STORE, image_of
from tests.fuzz.trial import check_trial, consume, files_of, frames_in, unkept
from tests.fuzz.world import World, a_world, bodies_of, topic_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tests.fuzz.world import Files

    Recorder: TypeAlias = Callable[[str, object], None]

MINE, OTHER = a_world(), a_world("other", 2)


def check(what: str, files: Files) -> int:
    """Run a trial; a failure says what had been done."""
    try:
        return check_trial(MINE, files)
    except BaseException as error:
        error.add_note(f"after: {what}")
        raise


def test_a_store_that_nothing_was_done_to_gives_everything() -> None:
    assert check("nothing", dict(MINE.files)) == 3
    found = consume(SimulatedFileSystem(image_of(MINE.files)), MINE)
    assert found.scanned == MINE.bodies
    assert set(found.delivered["open", "one"]) == MINE.bodies["open"].keys() - {0, 1, 4, 6}


# --- anything, several things at once


def damaged(seed: int, number: int) -> tuple[str, Files]:
    rng = Random(f"{seed}:{number}")
    files = dict(MINE.files)
    done = [damage(rng, files, OTHER.files) for _ in range(rng.randint(1, 3))]
    return f"{done}, trial {number}", files


def check_many(seed: int, count: int, record: Recorder) -> None:
    opened = sum(check(*damaged(seed, number)) for number in range(count))
    assert opened > count
    record("trials", count)


def test_damage_of_any_sort_is_survived(seed: int, record_property: Recorder) -> None:
    check_many(seed, 10, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_much_damage_of_any_sort_is_survived(seed: int, record_property: Recorder) -> None:
    check_many(seed, 3_000, record_property)


# --- every file, every fault (G9)

FAULTS: dict[str, Callable[[str, Files], object]] = {
    "deleted": lambda path, files: files.pop(path),
    "emptied": lambda path, files: files.update({path: b""}),
    "cut in half": lambda path, files: files.update({path: files[path][: len(files[path]) // 2]}),
    "a byte short": lambda path, files: files.update({path: files[path][:-1]}),
    "zeroed": lambda path, files: files.update({path: bytes(len(files[path]))}),
    "scrambled": lambda path, files: files.update({path: Random(path).randbytes(len(files[path]))}),
    "grown": lambda path, files: files.update({path: files[path] + b"more"}),
    "another store's": lambda path, files: files.update({path: OTHER.files.get(path, b"")}),
    "another topic's": lambda path, files: files.update({path: files[_elsewhere(path)]}),
    "its neighbour": lambda path, files: files.update({path: files[_neighbour(path)]}),
    "there twice": lambda path, files: files.update({f"{os.path.dirname(path)}/{5_000:020d}.seg": files[path]}),
}


def _elsewhere(path: str) -> str:
    topic = topic_of(path)
    there = path.replace(topic, "open" if topic == "many" else "many", 1)
    return there if there in MINE.files else f"open/{0:020d}.seg"


def _neighbour(path: str) -> str:
    beside = [other for other in sorted(MINE.files) if os.path.dirname(other) == os.path.dirname(path)]
    return beside[beside.index(path) - 1]


PAIRS = [(path, fault) for path in sorted(MINE.files) for fault in FAULTS]


def check_pair(path: str, fault: str) -> None:
    files = dict(MINE.files)
    FAULTS[fault](path, files)
    # One fault never keeps a topic from opening.
    assert check(f"{path} {fault}", files) == 3


def test_some_files_are_not_what_they_were(seed: int, record_property: Recorder) -> None:
    pairs = Random(seed).sample(PAIRS, 15)
    for path, fault in pairs:
        check_pair(path, fault)
    record_property("trials", len(pairs))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_file_is_not_what_it_was(record_property: Recorder) -> None:
    for path, fault in PAIRS:
        check_pair(path, fault)
    record_property("trials", len(PAIRS))


# --- single bits (G8)


def harmless(path: str, position: int) -> bool:
    """Return whether nothing is written there: between and behind the slots of a watermark."""
    return path.endswith("watermark") and position % SLOT_STRIDE >= SLOT_BYTES and position < SLOT_FILE_BYTES


def check_flip(world: World, path: str, position: int, bit: int) -> None:
    """The flip is reported in the put that it hit, costs nothing but that put, and its bytes are kept."""
    topic, place = topic_of(path), world.place_of(path, position)
    files = world.part(topic)
    data = bytearray(files[path])
    data[position] ^= 1 << bit
    files[path] = bytes(data)
    fs = SimulatedFileSystem(image_of(files))
    found = [finding for finding in verify_store(STORE, fs).findings if finding.path == f"{STORE}/{path}"]
    assert found or harmless(path, position)
    if path.endswith((".seg", "topic.json", "checkpoint")):
        low, high = (place.start, place.end) if place is not None else (0, len(data))
        assert any(finding.severity == "damage" and low <= finding.position < high for finding in found), found
    log = TopicLog(fs, f"{STORE}/{topic}", LogOptions(1 << 20), FakeClock())
    bodies = bodies_of(fs, log)
    log.abandon()
    lost = range(0) if place is None else range(place.first, place.stop)
    assert bodies == {offset: body for offset, body in world.bodies[topic].items() if offset not in lost}
    assert unkept(frames_in(files), frames_in(files_of(fs))) == []


def check_flips(rng: Random, count: int, record: Recorder) -> None:
    paths = sorted(MINE.files)
    for _ in range(count):
        # Small files as often as large ones, and the beginning of a file as often as all the rest.
        path = rng.choice(paths)
        position = rng.randrange(rng.choice((min(len(MINE.files[path]), 700), len(MINE.files[path]))))
        bit = rng.randrange(8)
        try:
            check_flip(MINE, path, position, bit)
        except BaseException as error:
            error.add_note(f"bit {bit} of byte {position} of {path}")
            raise
    record("trials", count)


def test_a_flipped_bit_is_reported_and_costs_one_put(seed: int, record_property: Recorder) -> None:
    check_flips(Random(seed), 200, record_property)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_of_many_flipped_bits_is_reported_and_costs_one_put(seed: int, record_property: Recorder) -> None:
    check_flips(Random(seed), 20_000, record_property)


# --- what was found here


def test_a_single_segment_that_was_swapped_is_the_stranger() -> None:
    """The description and the watermark agree with each other; its messages are not the topic's."""
    files = dict(MINE.files)
    one, two = f"open/{0:020d}.seg", f"tight/{0:020d}.seg"
    files[one], files[two] = files[two], files[one]
    assert check("swapped", files) == 3
    fs = SimulatedFileSystem(image_of(files))
    assert consume(fs, MINE).scanned["open"] == {}
    assert fs.exists(f"{STORE}/{one}.damaged-000000000000")


def test_a_segment_of_another_place_does_not_say_whose_the_topic_is() -> None:
    files = dict(MINE.files)
    one, two = f"open/{0:020d}.seg", f"many/{17:020d}.seg"
    files[one], files[two] = files[two], files[one]
    check("swapped", files)


@pytest.mark.parametrize("base", [5_000, 2**62])
@pytest.mark.parametrize("data", [b"", b"junk" * 14, bytes(64)], ids=["nothing", "junk", "zeros"])
def test_a_scrap_under_a_far_name_does_not_make_the_log_go_on_there(base: int, data: bytes) -> None:
    """All offsets up to there counted as lost, more than an operation of a journal can say."""
    files = {**MINE.files, f"open/{base:020d}.seg": data}
    check("scrap", files)
    fs = SimulatedFileSystem(image_of(files))
    log = TopicLog(fs, f"{STORE}/open", LogOptions(1 << 20), FakeClock())
    assert log.end == len(MINE.bodies["open"])
    log.abandon()


def test_a_whole_segment_without_a_header_under_a_far_name_is_set_aside() -> None:
    data = b"\xff" * 64 + MINE.files[f"open/{0:020d}.seg"][64:]
    check("far", {**MINE.files, f"open/{2**62:020d}.seg": data})


def test_a_watermark_of_junk_is_set_aside_before_it_is_written_over() -> None:
    fs = SimulatedFileSystem(image_of({**MINE.files, "open/watermark": b"junk" * 30}))
    TopicLog(fs, f"{STORE}/open", LogOptions(1 << 20), FakeClock()).abandon()
    kept = files_of(fs)["open/watermark.damaged-000000000000"]
    assert kept.startswith(b"junk" * 30)
