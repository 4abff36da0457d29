"""What the tests of shared stores share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.shared.support import as_said

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_said() -> Iterator[None]:
    with as_said():
        yield
