"""A plugin for pytest that runs as much as fits into a time, a test of each guarantee in turn.

`python -m tests.proof --quick` uses it: `pytest -p tests.proof.sampling --proof-seconds 30 …`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import chain, zip_longest
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.conftest import SEED
from tests.proof.guarantees import guarantee_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the time."""
    parser.addoption("--proof-seconds", type=float, default=0.0, help="begin no test after so many seconds")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests into an order in which each guarantee comes as early as any."""
    config.stash[BEGUN] = time.monotonic()
    random = Random(config.stash[SEED])
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in random.sample(items, len(items)):
        guarantee = guarantee_of(item.nodeid)
        groups[guarantee.name if guarantee else ""].append(item)
    items[:] = [item for item in chain(*zip_longest(*groups.values())) if item is not None]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Begin nothing more once the time is over."""
    result = yield
    if time.monotonic() - item.config.stash[BEGUN] > item.config.getoption("--proof-seconds"):
        item.session.shouldstop = "the time is over"
    return result
