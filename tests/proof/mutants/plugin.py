"""A plugin for pytest that runs tests on a mutant: `pytest -p tests.proof.mutants.plugin --mutant NAME`."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.proof.mutants import MUTANTS

PATCHES = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the mutant."""
    parser.addoption("--mutant", choices=sorted(MUTANTS), help="take this safeguard away")


def pytest_configure(config: pytest.Config) -> None:
    """Take it away."""
    config.stash[PATCHES] = ExitStack()
    config.stash[PATCHES].enter_context(MUTANTS[config.getoption("--mutant")].patch())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put it back."""
    config.stash[PATCHES].close()
