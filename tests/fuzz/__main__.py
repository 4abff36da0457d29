"""Fuzzing guided by coverage: `python -m tests.fuzz TARGET|all [--seconds N] [--seed S] [--corpus DIR]`.

It starts from the committed corpus; what it learns goes to `--corpus`, and so does an input that it fails on, as
`crash-…`, `timeout-…` or `oom-…`. `python -m tests.fuzz TARGET --input FILE` runs a single one.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_MEGABYTES: Final = 1024
_HANG_SECONDS: Final = 20
_LONGEST_INPUT: Final = 16_384


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what aiodq reads.")
    parser.add_argument("target", help="one of tests.fuzz.targets, or all of them in turn")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one, which is printed")
    parser.add_argument("--corpus", type=Path, help="where to keep what is learned; else it is thrown away")
    parser.add_argument("--input", type=Path, help="run only this file")
    return parser.parse_args(argv)


def _fuzzer() -> ModuleType:
    try:
        return importlib.import_module("atheris")
    except ImportError:
        sys.exit("fuzzing needs the extra 'fuzz': pip install -e '.[fuzz]'")


def _fuzz(name: str, options: argparse.Namespace, corpus: Path) -> None:
    """Fuzz one target; it ends the process."""
    atheris: Any = _fuzzer()
    with atheris.instrument_imports(include=["aiodq"]):
        targets = importlib.import_module("tests.fuzz.targets")
    saved = Path(__file__).parent / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    flags = [
        f"-max_total_time={options.seconds}",
        f"-timeout={_HANG_SECONDS}",
        f"-rss_limit_mb={_MEGABYTES}",
        f"-max_len={_LONGEST_INPUT}",
        f"-artifact_prefix={corpus}/",
        "-print_final_stats=1",
        *([f"-seed={options.seed}"] if options.seed else []),
    ]
    places = [str(options.input)] if options.input else [str(corpus), str(saved)]

    def once(data: bytes) -> None:
        targets.run(name, data)

    atheris.Setup([sys.argv[0], *flags, *places], once)
    atheris.Fuzz()


def _fuzz_all(names: Sequence[str], argv: Sequence[str]) -> int:
    """Fuzz one target after the other, each in a process of its own."""
    failed = []
    for name in names:
        print(f"--- {name}", flush=True)
        if subprocess.run([sys.executable, "-m", "tests.fuzz", name, *argv], check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed) or 'none'}")
    return bool(failed)


def main(argv: Sequence[str]) -> int:
    """Run what was asked for."""
    options = _arguments(argv)
    names = sorted(path.name for path in (Path(__file__).parent / "corpus").iterdir())
    _fuzzer()
    if options.target == "all":
        return _fuzz_all(names, [word for word in argv if word != "all"])
    if options.target not in names:
        sys.exit(f"no such target: {options.target}; there are {', '.join(names)}")
    if options.corpus:
        _fuzz(options.target, options, options.corpus / options.target)
    with tempfile.TemporaryDirectory() as scratch:
        _fuzz(options.target, options, Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
