"""Power cuts while a damaged store is repaired: nothing is gone that was not quarantined, and a second run ends it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from aiodq.storage.offline.repair import repair_store
from aiodq.testing import SimulatedFileSystem
from tests.fuzz.damage import damage
from tests.fuzz.stores import STORE, image_of
from tests.fuzz.trial import check_again, check_repair, consume, files_of, unkept
from tests.fuzz.world import a_world
from tests.proof.explore import sample

if TYPE_CHECKING:
    from aiodq.testing import Image, Ordering
    from tests.fuzz.trial import Consumed
    from tests.fuzz.world import Files

__all__ = ["cut_repairs"]


def cut_repairs(seed: int, stores: int, states: int, ordering: Ordering) -> int:
    """Damage that many stores, cut each one's repair in that many states; return how many states there were.

    Raises:
        AssertionError: of one of them, with notes that say which.
    """
    return sum(_cut_repair(Random(f"{seed}:{number}:{ordering}"), states, ordering) for number in range(stores))


def _damaged(random: Random) -> tuple[list[str], Files]:
    files = dict(a_world().files)
    return [damage(random, files, a_world("other", 2).files) for _ in range(random.randint(1, 3))], files


def _cut_repair(random: Random, states: int, ordering: Ordering) -> int:
    done, files = _damaged(random)
    fs = SimulatedFileSystem(image_of(files), ordering=ordering, record=True)
    repair_store(STORE, fs)
    assert fs.trace is not None
    found = consume(SimulatedFileSystem(fs.image()), a_world())
    count = 0
    for moment, image in sample(random, fs.trace, fs.laid_out, ordering, states):
        count += 1
        try:
            _check(files, image, found)
        except BaseException as error:
            error.add_note(f"the store: {done}; the power went at operation {moment} of its repair, {ordering}")
            raise
    return count


def _check(files: Files, image: Image, found: Consumed) -> None:
    left = files_of(SimulatedFileSystem(image))
    assert unkept(files, left) == []
    check_again(a_world(), check_repair(left), found)
