"""The benchmarks run, and say what they measured: not whether it is fast."""

from __future__ import annotations

import gc
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock
from xml.etree import ElementTree as ET

import pytest

import aiodq
from benchmarks import growth, holds, hops, subjects, summary, taking
from benchmarks.__main__ import main
from benchmarks.cases import CASES, HEADLINES
from benchmarks.harness import BATCH, Durability
from benchmarks.subjects import godiskqueue
from benchmarks.workers import Workers
from tests.cli.support import Short

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from benchmarks.harness import Case, Subject

SVG = "{http://www.w3.org/2000/svg}"


def case(name: str) -> Case:
    return next(each for each in CASES if each.name == name)


def subject(name: str) -> Subject:
    return subjects.named("aiodq", name)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Return a maker of programs that note what they are asked and print what a test gives."""

    def make(answer: str) -> Path:
        path = tmp_path / "program"
        asked = tmp_path / "asked"
        path.write_text(f"#!{sys.executable}\nimport sys\nopen({str(asked)!r}, 'w').write(' '.join(sys.argv[1:]))\n")
        with path.open("a") as file:
            file.write(f"print({answer!r})\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Return a directory in memory where there is such a thing: what a sync takes says nothing here."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of our own in it
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="aiodq-tests-") as path:
        yield Path(path)


def measured(scratch: Path, *words: str) -> dict[str, Any]:
    """Return the report of a quick run that must not fail."""
    kept = scratch / "kept.json"
    assert main(["--quick", "--dir", str(scratch), "--json", str(kept), *words]) == 0
    report: dict[str, Any] = json.loads(kept.read_text())
    assert [entry for entry in report["results"] if "failure" in entry] == []
    assert all(figure > 0 for entry in report["results"] for figure in entry["figures"])
    assert [path.name for path in scratch.iterdir()] == ["kept.json"], "what was measured is gone"
    return report


def test_everything_that_is_installed_is_measured(scratch: Path, program: Callable[[str], Path]) -> None:
    found, missing = subjects.load()
    assert missing == {}, "the extra bench is part of dev"
    # The server is no package of pip's; the benchmark installs it, a test does not.
    here = [each for each in found if each.package != "redis" or shutil.which("redis-server")]
    go = program('{"messages": 1000, "seconds": 0.5}')
    words = [f"--subject={name}" for name in ("go-diskqueue", *(each.name for each in here))]
    words += [f"--case={each.name}" for each in HEADLINES]
    report = measured(scratch, f"--go-diskqueue={go}", f"--compiled={sys.executable}", *words)
    measured_of = {(each.name, one.name) for each in HEADLINES for one in here if each.accepts(one)}
    assert measured_of <= {(entry["case"], entry["subject"]) for entry in report["results"]}
    batches = {entry["subject"] for entry in report["results"] if "1000 a call" in entry["case"]}
    assert {one.package for one in here if one.name in batches} >= {"aiodq", "sqlite", "aiosqlite", "queuelib"}
    works = summary.read(report)
    assert [work.title for work in works] == [each.headline for each in HEADLINES]
    alone = {each.headline for each in HEADLINES if each.unit < BATCH}
    assert all(len(list(work.peers())) >= 3 for work in works if work.title in alone)
    assert "is not compiled" in report["missing"]["aiodq compiled"], "an interpreter whose aiodq is pure takes no part"


def entry(
    subject: str, package: str, figures: list[float], durability: str = "kernel", **others: Any
) -> dict[str, Any]:
    known = {"headline": "put", "size": 100, "kind": "put", "against": None, "known_as": subject, "subject": subject}
    return {
        **known,
        "package": package,
        "figures": figures,
        "durability": durability,
        "kill": "kept",
        "power": "lost",
    } | (others)


def test_a_ratio_is_the_median_of_the_rounds_and_stands_beside_both_guarantees() -> None:
    ours = entry("aiodq os", "aiodq", [100.0, 300.0, 200.0])
    theirs = entry("queuelib", "queuelib", [100.0, 100.0, 10.0], kill="lost")
    table = summary.full_table(summary.read({"results": [ours, theirs]}))
    row = next(line for line in table.splitlines() if line.startswith("| queuelib"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *("queuelib", "lost", "aiodq os", "kept; lost", "100", "200", "3 x", "", "")
    ]


def test_peers_are_compared_with_the_aiodq_that_promises_as_much_unless_the_work_names_one() -> None:
    ours = [entry("aiodq os", "aiodq", [100.0]), entry("aiodq interval", "aiodq", [50.0], "deferred")]
    theirs = entry("litequeue", "litequeue", [10.0], "deferred")
    (work,) = summary.read({"results": [*ours, theirs]})
    assert "| litequeue | kept; lost | aiodq interval | kept; lost | 10 | 50 | 5 x |" in summary.full_table([work])
    named = replace(work, against="aiodq os")
    assert "| litequeue | kept; lost | aiodq os | kept; lost | 10 | 100 | 10 x |" in summary.full_table([named])


def test_the_compiled_one_stands_beside_the_pure_one() -> None:
    pure, peer = entry("aiodq os", "aiodq", [100.0]), entry("queuelib", "queuelib", [50.0])
    compiled = entry("aiodq compiled os", "aiodq compiled", [400.0], known_as="aiodq os")
    (work,) = summary.read({"results": [pure, compiled, peer]})
    assert "| 50 | 100 | 2 x | 400 | 8 x |" in summary.full_table([replace(work, against="aiodq os")])


def test_what_syncs_by_threads_is_shown_under_the_policy_to_show() -> None:
    slow, fast = (
        entry("aiodq always", "aiodq", [100_000.0]),
        entry("aiodq always, by threads", "aiodq thread", [300_000.0]),
    )
    (work,) = summary.read({"results": [fast, slow, entry("litequeue", "litequeue", [5000.0])]})
    assert "| 100 | 300 | 5 |" in summary.short_table([work])
    written = entry("aiodq os", "aiodq", [200_000.0])
    (other,) = summary.read({"results": [fast, slow, written]})
    assert summary.short_table([replace(other, against="aiodq os")]).splitlines()[-1].endswith("| 200 |")
    assert "by threads" not in summary.full_table([work]) + summary.losses([work])


@pytest.mark.parametrize(("kind", "speed"), [("put", "~ 0.5"), ("take", "~ 1.8")])
def test_go_diskqueue_is_derived_from_queuelib_only_where_it_was_not_measured(kind: str, speed: str) -> None:
    ours = entry("aiodq os", "aiodq", [9000.0], kind=kind)
    queuelib = entry("queuelib", "queuelib", [900.0], kind=kind)
    works = summary.read({"results": [ours, queuelib]})
    assert f"| {speed} |" in summary.short_table(works)
    assert "| ~ go-diskqueue, derived from queuelib |" in summary.full_table(works)
    assert "go-diskqueue, derived" in summary.draw(works)
    both = summary.read({"results": [ours, queuelib, entry("go-diskqueue", "godiskqueue", [7000.0], kind=kind)]})
    assert "| 7 |" in summary.short_table(both)
    assert "go-diskqueue, derived" not in summary.full_table(both) + summary.draw(both)


def test_what_is_lost_is_listed_with_what_the_faster_one_promises_the_clearest_first() -> None:
    entries = [
        entry("aiodq os", "aiodq", [100.0]),
        entry("queuelib", "queuelib", [400.0], kill="lost"),
        entry("go-diskqueue", "godiskqueue", [1000.0]),
        entry("slower", "redis", [99.0]),
    ]
    lines = summary.losses(summary.read({"results": entries})).splitlines()[2:]
    assert lines == [
        "| put, 100 B | go-diskqueue | kept; lost | 0.1 x |  |",
        "| put, 100 B | queuelib | lost | 0.25 x |  |",
    ]


def test_tables_replace_those_of_an_earlier_run_in_their_places_only(tmp_path: Path) -> None:
    kept, page = tmp_path / "kept.json", tmp_path / "page.md"
    entries = [entry(*both) for both in (("aiodq os", "aiodq", [3.0]), ("queuelib", "queuelib", [2.0]))]
    larger = [{**each, "size": 1024} for each in entries]
    kept.write_text(json.dumps({"environment": {"load": "0.1"}, "results": [*entries, *larger]}))
    names = ("environment", "short", "full", "larger", "losses")
    page.write_text(
        "Before.\n" + "".join(f"<!-- {name} -->\nold {name}\n<!-- /{name} -->\n" for name in names) + "After.\n"
    )
    for _ in range(2):
        assert summary.main([str(kept), "--into", str(page)]) == 0
        text = page.read_text()
        assert "old" not in text
        assert [text.count(f"{mark}{name} -->") for name in names for mark in ("<!-- ", "<!-- /")] == [1] * 10
        assert text.count("Before.") == text.count("After.") == text.count("Load: 0.1.") == 1
        assert text.count("| thousands a second, 1,024 B |") == text.count("| thousands a second, 100 B |") == 1
    page.write_text("No places.\n")
    assert summary.main([str(kept), "--into", str(page)]) == 0
    assert page.read_text() == "No places.\n"


def test_the_picture_has_a_bar_for_each_library_in_its_fastest_setting(tmp_path: Path) -> None:
    entries = [
        entry("aiodq always", "aiodq", [100.0], "synced"),
        entry("a <slow> setting", "aiosqlite", [20.0]),
        entry("a <fast> setting", "aiosqlite", [50.0]),
        entry("control", "control", [900.0]),
    ]
    kept, picture = tmp_path / "kept.json", tmp_path / "picture.svg"
    kept.write_text(json.dumps({"results": entries}))
    assert summary.main([str(kept), "--svg", str(picture)]) == 0
    root = ET.fromstring(picture.read_text())  # noqa: S314 - we wrote it
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect")]
    assert widths == [summary.FULL, summary.FULL / 2]
    assert "a <fast> setting" in [text.text for text in root.iter(f"{SVG}text")]


def test_go_diskqueue_is_asked_for_what_a_case_does(tmp_path: Path, program: Callable[[str], Path]) -> None:
    plain, synced = godiskqueue.subjects(program('{"messages": 200, "seconds": 0.5}'))
    directory = tmp_path / "empty"
    sample = plain.run(case("put, written, 1 producer"), 100, 50, directory)
    assert (sample.elapsed, sample.values) == (0.5, {"ops/s": 400.0})
    asked = tmp_path / "asked"
    assert asked.read_text() == f"--workload put --size 100 --count 50 --producers 1 --dir {directory}"
    synced.run(case("put, synced, 100 producers"), 100, 300, directory)
    assert asked.read_text() == f"--workload put-synced --size 100 --count 300 --producers 100 --dir {directory}"
    plain.run(case("async for + ack"), 1024, 70, directory)
    assert asked.read_text() == f"--workload get --size 1024 --count 70 --producers 1 --dir {directory}"
    assert not case("await ack, 100 consumers").accepts(plain), "nothing is acked there"


@pytest.mark.parametrize("answer", ["", "no JSON", "[]", '{"messages": 0, "seconds": 1}', '{"messages": 5}'])
def test_what_no_program_for_go_diskqueue_prints_is_refused(answer: str) -> None:
    with pytest.raises(ValueError, match=r"measured|not what a program"):
        godiskqueue.parse(answer)


def test_an_interpreter_whose_aiodq_is_compiled_runs_each_policy_once_more(program: Callable[[str], Path]) -> None:
    python = program('[true, "aiodq/__init__.py"]')
    found = {each.known_as: each for each in subjects.compiled(python)}
    assert set(found) == {"aiodq always", "aiodq interval", "aiodq os"}
    assert {(each.name, each.package, each.interpreter) for each in found.values()} == {
        (f"aiodq compiled {policy}", "aiodq compiled", str(python)) for policy in ("always", "interval", "os")
    }


def test_a_subject_that_raises_is_told_of_by_its_error_and_one_whose_process_dies_has_a_new_one(scratch: Path) -> None:
    # Another interpreter is one more subject.
    one = replace(subject("aiodq os"), name="another", interpreter=sys.executable, known_as="aiodq os")
    with Workers(scratch, 0.01, "uvloop") as workers:
        with pytest.raises(RuntimeError, match="StopIteration"):
            workers.measure(CASES[0], replace(one, known_as="aiodq never"), 100, 10)
        assert workers.measure(CASES[0], one, 100, 10).values["ops/s"] > 0
        workers._workers[one.name].kill()
        with pytest.raises((RuntimeError, OSError)):
            workers.measure(CASES[0], one, 100, 10)
        assert workers.measure(CASES[0], one, 100, 10).values["ops/s"] > 0
    assert list(scratch.iterdir()) == [], "what was measured is gone"


def test_each_headline_has_an_aiodq_to_compare_with() -> None:
    ours = subjects.load(["aiodq"])[0]
    for each in HEADLINES:
        taking_part = [one for one in ours if each.accepts(one)]
        assert {one.name for one in taking_part} >= ({each.against} if each.against else {"aiodq always"})
        assert each.against or {one.durability for one in taking_part} == set(Durability)


def test_growth_is_compared_with_the_smallest_whichever_came_first() -> None:
    figures = growth.Figures("segments")
    for size, seconds in ((10, 2e-6), (1, 1e-6), (1, 2e-6), (10, 6e-6), (1, 1e-6), (10, 5e-6)):
        figures.add(size, {"put": seconds})
    assert figures.ratio("put", 10) == 3.0
    assert "| put | 1.00 | 5.00 | 3.00 |" in growth.table(figures)


def test_growth_measures_a_put_a_get_and_an_ack_of_each_store(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dimensions = {each.name: each for each in growth.DIMENSIONS}
    assert [*dimensions["topics"].up_to(10).stores] == [1, 100], "two at least"
    few = growth.Dimension("topics", {count: growth.Grown(topics=count) for count in (1, 5, 20)})
    monkeypatch.setattr(growth, "DIMENSIONS", [dimensions["segments"], few, dimensions["filter"]])
    collector = mock.Mock(gc)  # collecting all that pytest and its plugins hold takes longer than all else
    monkeypatch.setattr(growth, "gc", collector)
    kept = scratch / "kept.json"
    assert growth.main(["--quick", "--dir", str(scratch), "--json", str(kept)]) == 0
    assert collector.freeze.call_count == collector.unfreeze.call_count == 8, "two stores, twice, in two dimensions"
    seconds = json.loads(kept.read_text())["seconds"]
    assert set(seconds) == {"segments", "topics", "filter"}
    assert set(seconds["filter"]) == {"get", "ack", "async for + ack_nowait"}
    assert set(seconds["filter"]["get"]) == {"1", "2", "10"}
    assert set(seconds["segments"]) >= {"put", "get", "ack", "drain the oldest 8 segments"}
    assert set(seconds["segments"]["put"]) == {"1", "10"}
    assert set(seconds["topics"]["put, the topics in turn"]) == {"1", "5"}
    assert "| µs a message, segments: | 1 | 10 | x at 10 |" in capsys.readouterr().out
    assert [path.name for path in scratch.iterdir()] == ["kept.json"]


async def test_stores_that_growth_fills_are_as_large_as_they_say(scratch: Path) -> None:
    async def grown(size: growth.Grown) -> tuple[int, int, int]:
        path = scratch / f"{size}"
        await growth.fill(path, size)
        async with aiodq.open(path) as store:
            topics = store.stats().topics
            first = topics["topic-0"]
            return first.segments, len(first.channels), len(topics)

    assert await grown(growth.Grown(segments=12)) == (12, 1, 1)
    assert await grown(growth.Grown(channels=4)) == (1, 4, 1)
    assert await grown(growth.Grown(topics=3)) == (1, 1, 3)


def test_holds_does_everything_it_lists(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "AFTERWARDS", 0.02)
    kept = scratch / "kept.json"
    assert main(["holds", "--quick", "--dir", str(scratch), "--json", str(kept)]) == 0
    figures = json.loads(kept.read_text())
    assert set(figures) == set(holds.WORKS)
    assert all(0 < figure < 60 for (figure,) in figures.values())


def test_holds_counts_what_holds_the_loop(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "AFTERWARDS", 0.0)

    async def slow(_store: aiodq.Store, count: int) -> AsyncIterator[None]:
        yield
        end = time.thread_time() + count / 1000
        while time.thread_time() < end:
            pass

    assert holds.measure(scratch, slow, 200) >= 0.2


def test_taking_measures_aiodq_beside_what_python_takes(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = scratch / "kept.json"
    assert main(["taking", "--quick", "--dir", str(scratch), "--json", str(kept)]) == 0
    figures = json.loads(kept.read_text())
    assert set(figures) == set(taking.PARTS)
    assert all(0 < figure < 1e9 for (figure,) in figures.values())
    assert "ns a message" in capsys.readouterr().out
    assert gc.isenabled()


@pytest.mark.pure("it notes when methods are called")
def test_hops_says_what_each_step_of_a_put_took(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hops", "--quick", "--dir", str(scratch)]) == 0
    said = capsys.readouterr().out
    for steps in hops.STEPS.values():
        assert all(what in said for what in steps.values())


def test_hops_counts_only_puts_that_passed_every_point_in_order() -> None:
    def passing(at: int, *points: str) -> list[tuple[int, str]]:
        return [(at + 1000 * number, point) for number, point in enumerate(points)]

    whole = ["starts", "syncs", "synced", "ends"]
    noted = [*passing(0, *whole), *passing(9000, "starts", "syncs", "starts"), *passing(20_000, *whole, "starts")]
    found = hops.steps_of("exclusive", [*reversed(noted), (500, "hears")])
    assert list(found.values()) == [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [6.0, 1.0]]


def test_hops_hears_all_that_a_process_noted_though_nothing_is_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = [[number, "sends"] for number in range(100)]

    async def take_part(*_: object) -> list[list[object]]:
        return noted

    short = Short(7)
    monkeypatch.setattr(hops, "_take_part", take_part)
    monkeypatch.setattr(sys, "argv", ["hops", "store", "exclusive", "asyncio", "1"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(short, "utf-8", write_through=True))  # type: ignore[type-var]  # typeshed wants a name and a read() of it, and it is only written to
    hops._child()
    assert json.loads(short.taken) == noted
