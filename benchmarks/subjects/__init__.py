"""One module for each library. A module that cannot be imported is reported, not fatal."""

from __future__ import annotations

import importlib
import json
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from benchmarks.harness import Subject

__all__ = ["COMPILED", "LIBRARIES", "compiled", "load", "named", "prepare"]

LIBRARIES = (
    "aiodq",
    "aiosqlite",
    "sqlite",
    "persistqueue",
    "litequeue",
    "diskcache",
    "queuelib",
    "redis",
    "control",
)
"""Module names here, in the order of the rows; all but `sqlite` and `control` are also the library's import name."""

COMPILED = "aiodq compiled"
"""The package of subjects that another interpreter runs with a compiled aiodq."""

ASK = "import aiodq, json; print(json.dumps([bool(getattr(aiodq, '__compiled__', False)), aiodq.__file__]))"


def load(libraries: Iterable[str] = LIBRARIES) -> tuple[list[Subject], dict[str, str]]:
    """Return the subjects at hand, and for each library that is not, the reason."""
    subjects: list[Subject] = []
    missing: dict[str, str] = {}
    for library in libraries:
        try:
            subjects += importlib.import_module(f"{__name__}.{library}").SUBJECTS
        except ModuleNotFoundError as error:
            missing[library] = "not installed" if error.name == library else f"not importable: {error}"
        except Exception as error:  # noqa: BLE001 - a library broken in any way is a line in the report
            missing[library] = f"not importable: {type(error).__name__}: {error}"
    return subjects, missing


def named(library: str, name: str) -> Subject:
    """Return the one subject that is asked for, without importing other libraries."""
    subjects, missing = load([library])
    if missing:
        raise ModuleNotFoundError(f"{library}: {missing[library]}")
    return next(subject for subject in subjects if subject.name == name)


def prepare(library: str) -> str:
    """Return why a library's subjects cannot run here, or nothing, having installed what they need where that is so."""
    module = importlib.import_module(f"{__name__}.{library}")
    reason: str = module.prepare() if hasattr(module, "prepare") else ""
    return reason


def compiled(interpreter: Path) -> list[Subject]:
    """Return aiodq as another interpreter has it, or raise why that is not a compiled one."""
    done = subprocess.run(  # noqa: S603 - a Python that the command line names
        [str(interpreter), "-P", "-E", "-c", ASK], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise ValueError(f"{interpreter} cannot import aiodq: {done.stderr.strip().splitlines()[-1]}")
    is_compiled, file = json.loads(done.stdout)
    if not is_compiled:
        raise ValueError(f"the aiodq of {interpreter}, {file}, is not compiled")
    return [
        replace(
            subject,
            name=subject.name.replace("aiodq", COMPILED),
            package=COMPILED,
            interpreter=str(interpreter),
            known_as=subject.name,
        )
        for subject in load(["aiodq"])[0]
        if subject.package == "aiodq"
    ]
