"""Fixtures of these tests."""

from __future__ import annotations

import logging

import pytest

from tests.channels.fixtures import machine, store

__all__ = ["lines", "machine", "store"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return what aiodq's loggers say, from INFO on."""
    caplog.set_level(logging.INFO, "aiodq")
    return caplog
