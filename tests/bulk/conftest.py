"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from tests.channels.fixtures import machine, store

__all__ = ["machine", "store"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an owner look for commits more often than once a second."""
    monkeypatch.setattr("aiodq.engine.store.bulk_adoption._INTERVAL", 0.01)
