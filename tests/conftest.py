"""What all tests share: the event loops, Hypothesis's profiles, and one seed that repeats a random run."""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import just

import aiodq
from aiodq.engine.stats import stats_publisher
from aiodq.storage.io.filesystem import OsFile
from tests.compiled import skip_what_needs_pure_python, skip_what_patches
from tests.loops import LOOPS, OF_FILES, loops_for
from tests.sessions import import_in_turns, place_in_a_shared_run, scheduling

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterator, Mapping

TESTS: Final = Path(__file__).parent
SEED_VARIABLE = "AIODQ_SEED"
SEED = pytest.StashKey[int]()
FAILED = pytest.StashKey[bool]()
STDERR = pytest.StashKey[int]()
ONE_IN: Final = 4
"""Of so many parameter sets of a test an ordinary run takes one on uvloop, and of fewer, too."""
_UVLOOP: Final = LOOPS.get("uvloop", LOOPS)

# A deadline measures the disk, not the code: one fdatasync takes 0.1 ms or 150 ms. So no profile has one. Each run
# draws other examples, so that 40 of them are enough for one.
settings.register_profile("default", settings.get_profile("default"), deadline=None, max_examples=40)
settings.register_profile(
    "ci",
    settings.get_profile("default"),
    database=None,
    # Not derandomized: each run looks elsewhere, and the seed in its header repeats it.
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("slow", settings.get_profile("ci"), max_examples=2_000)
settings.register_profile("few", settings.get_profile("ci"), max_examples=25)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Draw the run's seed before Hypothesis's own plugin looks for one, and choose the profile."""
    # One of several processes that share a run has the run's seed from the first.
    given = getattr(config, "workerinput", os.environ).get(SEED_VARIABLE)
    try:
        seed = config.stash[SEED] = random.SystemRandom().getrandbits(32) if given is None else int(given)
    except ValueError:
        raise pytest.UsageError(f"{SEED_VARIABLE} must be an integer, not {given!r}") from None
    # A forced seed keeps Hypothesis from replaying what failed before, so it is forced only where that is no loss.
    if config.option.hypothesis_seed is None and (given is not None or os.environ.get("CI")):
        config.option.hypothesis_seed = str(seed)
    if config.option.hypothesis_profile is None and config.option.markexpr == "slow":
        settings.load_profile("slow")
    # Most of a short child's life is its imports, twice as long where each has to compile aiodq. Many containers tell
    # Python to keep nothing compiled; tests do, beside the sources, as Python does of itself.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    config.stash[STDERR] = os.dup(2)  # a test's own is captured
    config.add_cleanup(lambda: os.close(config.stash[STDERR]))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # What a shell starts in the background ignores Ctrl-C, and so would the programs that tests interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if aiodq.__compiled__:
        patch = pytest.MonkeyPatch()
        config.add_cleanup(patch.undo)
        skip_what_patches(patch)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """End the process of a test that goes on for half a minute after its time (a hook of pytest-timeout).

    What is to end the test is raised by a signal's handler. uvloop swallows it, and then nothing would end the run.
    """
    faulthandler.dump_traceback_later(settings.timeout + 30, exit=True, file=item.config.stash[STDERR])


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer() -> None:
    """Let the test's process go on (a hook of pytest-timeout)."""
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Take one process more than there are cores for `-n auto` (a hook of pytest-xdist).

    A third of the tests' time they wait: for disks, for children, for Java.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have one of several processes run all that shares a Spark session (a hook of pytest-xdist).

    Each session is a Java of its own: half a minute of a core before it has answered its first question.
    """
    return scheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the run's seed to a process that is to share the run (a hook of pytest-xdist)."""
    node.workerinput[SEED_VARIABLE] = node.config.stash[SEED]


def pytest_report_header(config: pytest.Config) -> str:
    """Say how to repeat this run."""
    hypothesis_seed = config.option.hypothesis_seed
    kind = "compiled" if aiodq.__compiled__ else "pure Python"
    seeds = f"{SEED_VARIABLE}={config.stash[SEED]}, hypothesis: --hypothesis-seed={hypothesis_seed or 'its own'}"
    return f"aiodq: {kind}\nseed: {seeds}"


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run an async test once on each loop that its directory is tried on, or that its own mark names."""
    mark = item.get_closest_marker("asyncio")
    named = mark is not None and "loop_factories" in mark.kwargs
    return LOOPS if named else loops_for(item.path.relative_to(TESTS).parts[0])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the exhaustive runs what says much the same slowly, and to pure Python what is its own."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_in_a_shared_run(item.nodeid))
    if aiodq.__compiled__:
        skip_what_needs_pure_python(items)
    for item in items:
        for loop in LOOPS:
            if item.get_closest_marker(f"slow_on_{loop}") and loop in item.name:
                item.add_marker("slow")
        if "uvloop" in item.name and item.path.relative_to(TESTS).as_posix() in OF_FILES:
            item.add_marker("slow")
    _draw(items, config.stash[SEED])
    _draw_on_uvloop(items, config.stash[SEED])


def _draw(items: list[pytest.Item], seed: int) -> None:
    """Leave to the exhaustive runs all but so many values of a parameter, by the mark `drawn(parameter, count)`."""
    values: dict[str, set[str]] = {}
    marked = []
    for item in items:
        if isinstance(item, pytest.Function) and (mark := item.get_closest_marker("drawn")):
            test, parameter, *count = item.nodeid.partition("[")[0], *mark.args
            marked.append((item, test, value := str(item.callspec.params[parameter]), *count))
            values.setdefault(test, set()).add(value)
    for item, test, value, *count in marked:
        among = sorted(values[test])
        if value not in random.Random(f"{seed} {test}").sample(among, min(len(among), *(count or [1]))):
            item.add_marker("slow")


def _draw_on_uvloop(items: list[pytest.Item], seed: int) -> None:
    """Leave to the exhaustive runs most of a test's parameter sets on uvloop: asyncio's loop has them all."""
    sets: dict[str, list[pytest.Item]] = {}
    for item in items:
        left = item.get_closest_marker("slow") or item.get_closest_marker("slow_on_asyncio")
        if isinstance(item, pytest.Function) and not left and _loop_of(item) is _UVLOOP:
            sets.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for test, found in sets.items():
        random.Random(f"{seed} {test}").shuffle(found)
        for item in found[-(-len(found) // ONE_IN) :]:
            item.add_marker("slow")


def _loop_of(item: pytest.Function) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop that pytest-asyncio gives to a test, if it does."""
    params: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("_asyncio_loop_factory")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None]:
    """Collect no garbage meanwhile: a hundred thousand objects are made, and stay. Share what is to be compiled."""
    gc.disable()
    try:
        import_in_turns(session.config)
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let garbage collection pass over the tests themselves: a test that asks for it would wait for all of them."""
    # Hypothesis asks once, at its first example, who refers to its generator; frozen objects are not in the answer.
    settings(database=None, max_examples=1)(given(just(None))(lambda _: None))()
    gc.collect()
    gc.freeze()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the run's seed, for `random.Random(seed)`; a failing test that asked for it reports it."""
    value = request.config.stash[SEED]
    request.node.user_properties.append((SEED_VARIABLE, value))
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell beside the traceback how to repeat a random test; note that a test has failed."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    seeds = [value for name, value in report.user_properties if name == SEED_VARIABLE]
    if report.failed and seeds:
        report.sections.append(("seed", f"repeat with {SEED_VARIABLE}={seeds[0]}"))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Have what a failed test leaves behind, such as open sockets in its traceback, go before the next test begins.

    Otherwise it is collected amid a later test, which fails for it. What its finalizers complain of is no news.
    """
    if not item.stash.get(FAILED, False):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda _: None)
        try:
            yield
        finally:
            for name in ("last_exc", "last_type", "last_value", "last_traceback"):  # pytest keeps them for a debugger
                vars(sys).pop(name, None)
            gc.collect()


@pytest.fixture
def kept() -> Iterator[list[aiodq.Store]]:
    """Hold what is left open, as a traceback does; it is dropped at the end."""
    stores: list[aiodq.Store] = []
    yield stores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        stores.clear()
        gc.collect()


@pytest.fixture
def unshown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have owners show no figures, for who counts files or calls: they do each second, which may pass in any test."""
    monkeypatch.setattr(stats_publisher, "_INTERVAL", 3600)


@pytest.fixture
def cached_path(tmp_path: Path) -> Path:
    """Return `tmp_path`; skip the test where nobody tells what the system has of a file there in memory."""
    probe = tmp_path / "probe"
    probe.write_bytes(b"x")
    file = OsFile(os.open(probe, os.O_RDONLY))
    there = file.read_cached(1, 0)
    file.close()
    probe.unlink()
    if there is None:
        pytest.skip("the temporary directory's file system does not tell what is in the page cache, as tmpfs does not")
    return tmp_path
