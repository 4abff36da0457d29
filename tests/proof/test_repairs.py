"""Repair under power cuts; see `tests.proof.repairs`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from aiodq.testing import SimulatedFileSystem
from tests.proof.repairs import cut_repairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiodq.testing import Ordering

    Record = Callable[[str, object], None]


@pytest.mark.drawn("ordering")
@pytest.mark.parametrize("ordering", ["posix", "ext4"])
def test_a_repair_that_a_power_cut_ends_can_be_repeated(ordering: Ordering, seed: int, record_property: Record) -> None:
    record_property("trials", cut_repairs(seed, 6, 3, ordering))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ordering", ["posix", "ext4"])
def test_many_repairs_that_a_power_cut_ends_can_be_repeated(
    ordering: Ordering, seed: int, record_property: Record
) -> None:
    record_property("trials", cut_repairs(seed, 300, 6, ordering))


def test_a_copy_that_is_not_synced_before_the_original_is_touched_is_noticed() -> None:
    with (
        mock.patch.object(SimulatedFileSystem, "sync_directory", return_value=None),
        pytest.raises(AssertionError),
    ):
        cut_repairs(1, 40, 6, "posix")
