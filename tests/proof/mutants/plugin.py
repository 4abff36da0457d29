"""A plugin for pytest that runs tests on a mutant: `pytest -p tests.proof.mutants.plugin --mutant NAME`."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import Phase, settings

from tests.proof.mutants import MUTANTS

PATCHES = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the mutant."""
    parser.addoption("--mutant", choices=sorted(MUTANTS), help="take this safeguard away")


def pytest_configure(config: pytest.Config) -> None:
    """Take it away."""
    # That a test fails is enough. The smallest example of it takes minutes to find.
    now = settings.get_profile(settings.get_current_profile_name())
    settings.register_profile("unshrunk", now, phases=(Phase.explicit, Phase.generate))
    settings.load_profile("unshrunk")
    config.stash[PATCHES] = ExitStack()
    config.stash[PATCHES].enter_context(MUTANTS[config.getoption("--mutant")].patch())


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put it back."""
    config.stash[PATCHES].close()
