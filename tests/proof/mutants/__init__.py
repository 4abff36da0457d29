"""aiodq with one safeguard taken away. Whatever explores has to notice each, or it proves nothing.

A module for each layer. A safeguard that is new gets a mutant in the module of its layer, or in one that is added here.
"""

from __future__ import annotations

from tests.proof.mutants import (
    backups,
    channels,
    commits,
    delivery,
    disk,
    identity,
    log,
    options,
    pool,
    shared,
    transactions,
)
from tests.proof.mutants.registry import MUTANTS, Mutant, mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "backups",
    "channels",
    "commits",
    "delivery",
    "disk",
    "identity",
    "log",
    "mutant",
    "options",
    "pool",
    "shared",
    "transactions",
]
