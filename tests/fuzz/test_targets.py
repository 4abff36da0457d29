"""Every format under bytes that were right once: a typed error or a result, in bounded memory and time."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.format.support import MIB, memory_bound
from tests.fuzz import corpus
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import seeds
from tests.fuzz.stores import as_row, from_row, small_store
from tests.fuzz.targets import TARGETS, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Recorder: TypeAlias = Callable[[str, object], None]

ALLOWED = 16 * MIB
PER_BYTE = 64
"""What `raw_limit` lets a compressed payload claim, and more than any other format needs for a byte."""

EXAMPLES = {"store": 30, "segment": 60}
"""Of the targets that are slow; the others go by the profile."""


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Have every target import what it does only when it is first needed, which counts for no input."""
    for name in TARGETS:
        for data in seeds(name):
            run(name, bytes(1) + data)


@pytest.mark.drawn("name", 9)
@pytest.mark.parametrize("name", TARGETS)
def test_changed_bytes_give_a_result_or_a_typed_error(name: str, record_property: Recorder) -> None:
    trials: list[bool] = []

    @given(mutated(seeds(name)))
    def check(data: bytes) -> None:
        with memory_bound(ALLOWED + PER_BYTE * len(data)):
            trials.append(run(name, data))

    if name in EXAMPLES:
        # What is found is told as it is: to make it smaller takes longer than a test may.
        check = settings(max_examples=EXAMPLES[name], phases=(Phase.explicit, Phase.reuse, Phase.generate))(check)
    check()
    assert any(trials)
    record_property("trials", len(trials))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_bytes_changed_more_often(name: str, record_property: Recorder) -> None:
    trials: list[bool] = []

    @settings(max_examples=2_000 if name in EXAMPLES else 20_000)
    @given(mutated(seeds(name)) | st.binary(max_size=400))
    def check(data: bytes) -> None:
        trials.append(run(name, data))

    check()
    record_property("trials", len(trials))


@pytest.mark.parametrize("name", TARGETS)
def test_the_whole_corpus_is_read(name: str, record_property: Recorder) -> None:
    paths = corpus.saved(name)
    for path in paths:
        data = path.read_bytes()
        with memory_bound(ALLOWED + PER_BYTE * len(data)):
            run(name, data)
    record_property("trials", len(paths))


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_what_the_encoders_make(name: str) -> None:
    made = corpus.made(name)
    assert {path.name: path.read_bytes() for path in corpus.saved(name) if path.name in made} == made
    assert all(path.name in made or path.name.startswith(("found-", "version-")) for path in corpus.saved(name))
    # And all of it is right: bytes that nothing reads would begin a fuzzer nowhere.
    whole = [run(name, data) for data in made.values()]
    assert all(whole) or (name == "journal" and whole.count(False) == 2)  # the journal without operations


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in corpus.CORPUS.rglob("*") if path.is_file()) < 200_000


def test_a_row_of_bytes_is_a_store() -> None:
    assert from_row(as_row(small_store())) == small_store()
    assert from_row(b"\xff") == {}


def test_without_the_fuzzer_the_extra_is_named() -> None:
    code = "import sys, runpy; sys.modules['atheris'] = None; sys.argv[1:] = ['header']; runpy.run_module('tests.fuzz')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0  # as a module it only defines
    code = code.replace("'tests.fuzz')", "'tests.fuzz', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "fuzzing needs the extra 'fuzz': pip install -e '.[fuzz]'\n"


def test_the_fuzzer_runs_a_target() -> None:
    pytest.importorskip("atheris", reason="the extra 'fuzz' is not installed")
    command = [sys.executable, "-m", "tests.fuzz", "header", "--seconds", "1", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "number_of_executed_units" in done.stderr
