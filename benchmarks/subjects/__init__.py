"""One module for each library. A module that cannot be imported is reported, not fatal."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Subject

__all__ = ["LIBRARIES", "load"]

LIBRARIES = ("aiodq", "aiosqlite", "persistqueue", "queuelib", "control")
"""Module names here, in the order of the rows; all but `control` are also the library's import name."""


def load() -> tuple[list[Subject], dict[str, str]]:
    """Return the subjects at hand, and for each library that is not, the reason."""
    subjects: list[Subject] = []
    missing: dict[str, str] = {}
    for library in LIBRARIES:
        try:
            subjects += importlib.import_module(f"{__name__}.{library}").SUBJECTS
        except ModuleNotFoundError as error:
            missing[library] = "not installed" if error.name == library else f"not importable: {error}"
        except Exception as error:  # noqa: BLE001 - a library broken in any way is a line in the report
            missing[library] = f"not importable: {type(error).__name__}: {error}"
    return subjects, missing
