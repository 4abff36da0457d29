"""What the project promises about itself: few dependencies, a README that can be run, small modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "aiodq"
EXTRAS = {
    "aiohttp",
    "cyclopts",
    "fastapi",
    "fsspec",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "rich",
    "starlette",
    "uvicorn",
    "zstandard",
}
# The modules that exist for the sake of an extra, with all that is below them.
MAY_IMPORT_EXTRAS = (
    "aiodq.cli",
    "aiodq.format.vectorized.arrow",
    "aiodq.format.vectorized.encode",
    "aiodq.format.codecs",
    "aiodq.format.vectorized.frame_arrays",
    "aiodq.spark",
    "aiodq.storage.read.arrow_reader",
)
MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 60


def test_core_dependencies_are_exactly_four() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0] for requirement in project["dependencies"]]
    assert sorted(names) == ["aiofiles", "anyio", "filelock", "uvloop"]


def shell_blocks(markdown: str) -> list[str]:
    """Return the bodies of the fenced blocks that .ci/run takes for shell, in order."""
    fences = re.findall(r"^```(.*?)[ \t]*\n(.*?)^```[ \t]*$", markdown, flags=re.MULTILINE | re.DOTALL)
    return [body for language, body in fences if language in {"sh", "bash", "console"}]


def test_readme_opens_with_the_main_job_and_then_the_tests() -> None:
    first, second, *_ = shell_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert first.strip()
    assert "pytest" in second


def run_python(code: str) -> str:
    """Run `code` in a new interpreter, where no test has imported anything yet, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_brings_in_no_extra() -> None:
    assert run_python(f"import aiodq, sys; assert aiodq.__file__; print(*sorted({EXTRAS} & set(sys.modules)))") == "\n"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_imports_an_extra_it_does_not_exist_for() -> None:
    names = sorted(module_name(path) for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")
    names = [name for name in names if not f"{name}.".startswith(tuple(f"{allowed}." for allowed in MAY_IMPORT_EXTRAS))]
    assert "aiodq.errors" in names
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name)
    found = {EXTRAS} & set(sys.modules)
    assert not found, f"{{name}} imports {{found}}"
"""
    run_python(code)


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def too_long(path: Path) -> list[str]:
    """Return what in this module is over the house's measure."""
    source = path.read_text(encoding="utf-8")
    where = path.relative_to(ROOT).as_posix()
    lines = len(source.splitlines())
    module = [f"{where}: {lines} lines"] if lines > MAX_MODULE_LINES else []
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return module + [
        f"{where}:{node.lineno} {node.name}: {lines_of(node)} lines"
        for node in functions
        if lines_of(node) > MAX_FUNCTION_LINES
    ]


def test_modules_and_functions_stay_small() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert PACKAGE / "errors.py" in paths
    assert [excess for path in paths for excess in too_long(path)] == []


def test_every_core_dependency_is_imported_where_it_serves() -> None:
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    assert imported >= {"aiofiles", "anyio", "filelock", "uvloop"}


def test_the_systems_that_are_claimed_are_those_that_readme_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    systems = [name for name in project["classifiers"] if name.startswith("Operating System ::")]
    assert systems == ["Operating System :: MacOS", "Operating System :: POSIX :: Linux"]
    assert "POSIX only" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_what_is_to_be_compiled_and_what_is_left_out_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    assert [room for room in hook["rooms"] if not list((ROOT / room).glob("*.py"))] == []
    left_out = [path for paths in hook["left-out"].values() for path in paths]
    assert [path for path in [*hook["modules"], *left_out] if not (ROOT / path).is_file()] == []
    assert [path for path in left_out if str(Path(path).parent) not in hook["rooms"]] == []
    for path, names in hook["inherited"].items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert set(names) <= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        assert path in hook["modules"] or str(Path(path).parent) in hook["rooms"]
