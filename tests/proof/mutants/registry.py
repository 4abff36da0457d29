"""What a mutant is, the ways to make one, and all of them by name."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests.proof.explore import Case, explore
from tests.proof.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from tests.proof.explore import Violation

Patch: TypeAlias = "AbstractContextManager[object]"

__all__ = ["MUTANTS", "Mutant", "Patch", "change", "changed", "mutant"]

_MOMENTS: Final = 15
_LIVES: Final = 4
_KILLS: Final = 8
"""How far one seed goes: a little, and the next one then."""

_ROOT: Final = Path(__file__).resolve().parents[3]
_TESTS_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Mutant:
    """A safeguard, a patch that takes it away, and what relies on it.

    Attributes:
        name: what is wrong with it.
        patch: makes it so.
        workloads: that notice it.
        kills: it shows where a process is killed and another one goes on before the power is cut.
        test: an ordinary test that notices it, for those that no power cut and no kill can show.
    """

    name: str
    patch: Callable[[], Patch]
    workloads: tuple[str, ...]
    kills: bool = False
    test: str = ""

    def found(self, workload: str, seeds: Iterable[int]) -> Violation | None:
        """Return the first violation that shows in one of its workloads under any of these seeds.

        A few moments of each are looked at: most mutants show at many of them.
        """
        kills, lives = (_KILLS, 1) if self.kills else (0, _LIVES)
        with self.patch():
            for seed in seeds:
                case = Case(workload, seed, nested=1, lives=lives, moments=_MOMENTS, kills=kills)
                result = explore(case, WORKLOADS[workload], enough=1)
                if result.violations:
                    return result.violations[0]
        return None

    def fails(self) -> bool:
        """Return whether its test fails, in a process of its own."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.proof.mutants.plugin",
        ]
        done = subprocess.run(
            [*command, f"--mutant={self.name}", self.test],
            cwd=_ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in {0, _TESTS_FAILED}:
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.returncode == _TESTS_FAILED


MUTANTS: dict[str, Mutant] = {}


def _add(made: Mutant) -> None:
    assert made.name not in MUTANTS, made.name
    MUTANTS[made.name] = made


def mutant(
    *workloads: str, kills: bool = False, test: str = ""
) -> Callable[[Callable[[], Patch]], Callable[[], Patch]]:
    """Add a patch, named by its function, to those that have to be noticed in these workloads or by that test."""

    def add(patch: Callable[[], Patch]) -> Callable[[], Patch]:
        _add(Mutant(patch.__name__.replace("_", " "), patch, workloads, kills, test))
        return patch

    return add


def change(
    name: str, function: object, old: str, new: str, *workloads: str, kills: bool = False, test: str = ""
) -> None:
    """Add a mutant that has another text in one place of a function; see `changed`."""
    _add(Mutant(name, partial(changed, function, old, new), workloads, kills, test))


@contextmanager
def changed(function: object, old: str, new: str) -> Iterator[None]:
    """Let a function do what it would with `new` in its source instead of `old`, which must be there once.

    Whoever holds the function has the changed one, too. It must not use variables of a function around it.
    """
    plain = _plain(function)
    source = textwrap.dedent(inspect.getsource(plain))
    if source.count(old) != 1:
        raise ValueError(f"{old!r} is {source.count(old)} times in {plain.__qualname__}")
    before = plain.__code__
    plain.__code__ = _compiled(source.replace(old, new), plain)
    try:
        yield
    finally:
        plain.__code__ = before


def _plain(function: object) -> FunctionType:
    """Return the function below what it was decorated with."""
    found: Any = function.fget if isinstance(function, property) else getattr(function, "__func__", function)
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), function
    return found


def _compiled(source: str, like: FunctionType) -> Any:
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    # Annotations name what only a type checker imports.
    tree.body.insert(0, ast.parse("from __future__ import annotations").body[0])
    scope = dict(like.__globals__)
    exec(compile(tree, like.__code__.co_filename, "exec"), scope)  # noqa: S102 - the project's own source, changed a little
    return scope[definition.name].__code__
