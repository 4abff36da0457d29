"""Fixtures of these tests."""

from __future__ import annotations

from tests.channels.fixtures import machine, store

__all__ = ["machine", "store"]
