"""Compiles the hot modules into the wheel where AIODQ_COMPILE=1 asks for it; without it, nothing here is of effect.

What is compiled, and why the rest is not, is in `pyproject.toml` under `tool.hatch.build.targets.wheel.hooks.custom`.
The sources stay in the wheel beside what was made of them: Python prefers the compiled module, tracebacks and editors
read the source. AIODQ_COMPILE_LEVEL is the C compiler's level of optimization, 3 if it is not given: 1 is built sooner.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def asked_for() -> bool:
    """Return whether this build is to compile."""
    return os.environ.get("AIODQ_COMPILE") == "1"


# The base is generic in a class of hatchling's internals; where hatchling is not installed, mypy knows no base at all.
class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg, unused-ignore]  # its parameter is internal
    """What hatchling calls around the building of a wheel."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling: nothing for a pure wheel, so that no compiler is ever asked."""
        return list(self.config["requires"]) if asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the compiled modules into the wheel, and name it after the Python and the machine it is for."""
        if not asked_for() or version == "editable":  # an editable install is there to see edits
            return
        self._work = tempfile.TemporaryDirectory(prefix="aiodq-mypyc-")
        work = Path(self._work.name)
        for library in compiled(Path(self.root), self._modules(), work, self.config["inherited"]):
            build_data["force_include"][str(library)] = library.relative_to(work / "lib").as_posix()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was built on the way."""
        if asked_for() and version != "editable":
            self._work.cleanup()

    def _modules(self) -> list[str]:
        root = Path(self.root)
        paths = [path for room in self.config["rooms"] for path in root.glob(f"{room}/*.py")]
        found = {path.relative_to(root).as_posix() for path in paths if path.name != "__init__.py"}
        left_out = {path for paths in self.config["left-out"].values() for path in paths}
        if unknown := sorted(path for path in left_out | set(self.config["modules"]) if not (root / path).is_file()):
            raise FileNotFoundError(f"pyproject.toml names for compiling what does not exist: {', '.join(unknown)}")
        return sorted((found | set(self.config["modules"])) - left_out)


def as_mypyc_needs_it(source: str, inherited: Collection[str] = ()) -> str:
    """Return a module that means to mypyc what this one means to Python, line for line the same.

    Args:
        source: the module.
        inherited: its classes that classes which are not compiled inherit from.

    Attributes: every module here says `from __future__ import annotations`, so it may name in them what is imported for
    type checkers alone. mypyc evaluates an attribute's class all the same where dataclasses or NamedTuple may ask for
    it, but no union: `X | X` is to it what `X` is, unevaluated. Causes: mypyc forgets the `from` of a `raise`.
    """
    tree = ast.parse(source)
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in guarded for node in block.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    attributes = [node.annotation for one in classes for node in one.body if isinstance(node, ast.AnnAssign)]
    changes = [
        (node, f"{said} | {said}") for node in attributes if re.split(r"\W", said := ast.unparse(node))[0] in names
    ]
    raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    changes += [(node, with_cause(node.exc, node.cause)) for node in raises if node.exc and node.cause]
    lines = source.encode().splitlines(keepends=True)
    for name in inherited:
        # In the line before, which is blank. The import is one for type checkers: when it runs, nothing needs it.
        (line,) = (node.lineno for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        lines[line - 2] = b"@mypyc_attr(allow_interpreted_subclasses=True)\n"
    if inherited:
        lines[imports[0].lineno - 1] = (
            b"    from mypy_extensions import mypyc_attr; " + lines[imports[0].lineno - 1].lstrip()
        )
    for node, text in changes:
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        behind = lines[last][node.end_col_offset :]
        lines[first] = lines[first][: node.col_offset] + text.encode() + behind
        for line in range(first + 1, last + 1):
            lines[line] = b"\n"
    return b"".join(lines).decode()


def with_cause(raised: ast.expr, cause: ast.expr) -> str:
    """Return `raise … from …` in other words, on one line."""
    error, name = ast.unparse(raised), f"_raised_{raised.lineno}"
    if error.isidentifier() and error[0].isupper():  # a class
        error += "()"
    return f"{name} = {error}; {name}.__cause__ = {ast.unparse(cause)}; raise {name}"


def compiled(root: Path, modules: list[str], work: Path, inherited: Mapping[str, Collection[str]]) -> list[Path]:
    """Compile these modules, and return the libraries below `work/lib`, where their packages would have them.

    Args:
        root: the checkout.
        modules: their paths in it.
        work: a directory of its own.
        inherited: the classes that classes which are not compiled inherit from, by module.
    """
    # Build requirements of this case alone.
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools import Distribution  # noqa: PLC0415

    sources = work / "sources"
    shutil.copytree(root / "aiodq", sources / "aiodq", ignore=shutil.ignore_patterns("__pycache__"))
    for module in modules:
        path = sources / module
        source = as_mypyc_needs_it(path.read_text(encoding="utf-8"), inherited.get(module, ()))
        path.write_text(source, encoding="utf-8")
    before = Path.cwd()
    os.chdir(sources)
    try:
        extensions = mypycify(
            # The code was checked by `mypy`, with everything installed. Here it is read without its dependencies.
            ["--config-file=", "--ignore-missing-imports", "--cache-dir", str(work / "cache"), *modules],
            opt_level=os.environ.get("AIODQ_COMPILE_LEVEL", "3"),
            debug_level="0",
            group_name="aiodq",
            target_dir=str(work / "c"),
        )
        command = Distribution({"name": "aiodq", "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(work / "lib"), str(work / "temp")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    return sorted((work / "lib").rglob("*.pyd" if sys.platform == "win32" else "*.so"))
