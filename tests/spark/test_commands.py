"""The commands `aiodq spark …`, in the session of these tests."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

import aiodq as library
from aiodq.cli.spark_session import _watch
from aiodq.spark import pipelines
from aiodq.spark.pipelines import ArchiveSummary, AuditSummary, CompactSummary, ReplaySummary, ReportSummary
from aiodq.spark.pipelines.audit import AuditFinding
from tests.cli.support import Running, aiodq, ok
from tests.spark.support import fill
from tests.storage.logs import flip, segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 200


@pytest.fixture(autouse=True)
def shared(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use, and not stop, the session that is there."""
    assert spark is not None
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "store"))
    return tmp_path / "store"


@pytest.mark.slow
def test_what_is_archived_is_replayed(store: Path, tmp_path: Path) -> None:
    done = ok("spark", "archive", store, tmp_path / "archive", "--once")
    assert done.lines[-1].startswith(b"archived 200 messages to ")
    done = ok("spark", "replay", tmp_path / "archive", tmp_path / "again", "--into", "late", "--first", "150")
    assert done.lines[-1].startswith(b"replayed 50 messages into ")
    for told in (b"replayed 200 messages into ", b"nothing to do: 'one' was committed before into "):
        done = ok("spark", "replay", tmp_path / "archive", tmp_path / "once", "--txn-id", "one")
        assert done.lines[-1].startswith(told)
    wanted = [message.body for message in library.open_reader(store).topic("orders").scan(150)]
    assert [message.body for message in library.open_reader(tmp_path / "again").topic("late").scan()] == wanted


@pytest.mark.usefixtures("elsewhere")
def test_questions_in_sql(store: Path, tmp_path: Path) -> None:
    sql = "SELECT tag, count(*) AS n FROM orders WHERE tag IS NOT NULL GROUP BY tag ORDER BY tag"
    done = ok("spark", "query", store, sql, "--output", "json")
    assert [json.loads(line) for line in done.lines] == [{"tag": "blue", "n": 14}, {"tag": "red", "n": 26}]
    done = ok(
        "spark",
        "query",
        store,
        "SELECT tag, text || char(155) AS text FROM orders WHERE offset = 0",
        "--output",
        "json",
    )
    assert done.out == b'{"tag":null,"text":"0\\u009b"}\n'
    put = next(iter(library.open_reader(store).topic("orders").scan())).timestamp
    shown = ok("spark", "query", store, "SELECT timestamp, tag FROM orders WHERE tag = 'blue' LIMIT 1").out.decode()
    assert f"{put:%Y-%m-%d %H:%M}" in shown
    assert "blue" in shown
    ok("spark", "query", store, sql, "--parquet", tmp_path / "result")
    assert list((tmp_path / "result").glob("*.parquet"))


@pytest.mark.slow
def test_a_report_is_one_file(store: Path, tmp_path: Path) -> None:
    assert b"200 messages of 1 topic" in ok("spark", "report", store, tmp_path / "report.html").out
    html = (tmp_path / "report.html").read_text()
    assert html.count("<svg") >= 3
    assert "orders" in html


def test_an_audit_says_where_the_damage_is(store: Path) -> None:
    assert b"200 messages, " in ok("spark", "audit", store).out
    flip(segments(store / "orders")[0], 500, 3)
    done = aiodq("spark", "audit", store)
    assert done.code == 1
    assert b": 1 finding; " in done.out
    assert str(segments(store / "orders")[0]) in done.err
    assert "at byte" in done.err
    done = aiodq("spark", "audit", store, "--json")
    assert done.code == 1
    assert len(done.json["findings"]) == 1


def test_what_is_damaged_fails_a_query_or_is_left_out(store: Path) -> None:
    flip(segments(store / "orders")[0], 500, 3)
    words = "spark", "query", store, "SELECT count(*) AS n FROM orders", "--output", "json"
    done = aiodq(*words)
    assert (done.code, done.out) == (1, b"")
    assert "query or report with lossy, goes on without" in done.err
    assert 0 < ok(*words, "--lossy").json["n"] < ROWS


@pytest.mark.slow
def test_the_latest_of_each_key(store: Path) -> None:
    """Of those without a key, of which there are 160, all."""
    done = ok("spark", "compact", store, "orders", "latest")
    assert done.lines[-1].startswith(b"kept 162 messages of 200 in latest: ")
    assert library.open_reader(store).topics() == ["latest", "orders"]
    done = ok("spark", "compact", store, "orders", "latest")
    assert done.lines[-1] == b"nothing to do: the same was committed before into latest"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["query", "{store}", "SELECT nothing FROM orders"], "nothing"),
        (["query", "{store}/none", "SELECT 1"], "none"),
        (["audit", "{store}", "--topic", "unknown"], "unknown"),
        (["audit", "{store}", "--conf", "nonsense"], "KEY=VALUE"),
        (["compact", "{store}", "unknown", "latest"], "unknown"),
        (["replay", "{store}/none", "{store}"], "none"),
    ],
)
def test_mistakes_are_told_in_a_line(store: Path, wrong: list[str], complaint: str) -> None:
    done = aiodq("spark", *(word.format(store=store) for word in wrong))
    assert done.code in {1, 2}
    assert done.out == b""
    assert complaint in done.err
    assert "Traceback" not in done.err
    assert "at org.apache" not in done.err


def test_what_cannot_be_written_is_told_before_java_is_started(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "start_session", lambda *_: pytest.fail("Spark was started"))
    done = aiodq("spark", "report", store, store / "nowhere" / "report.html")
    assert done.code == 1
    assert "No such file or directory" in done.err
    done = aiodq("spark", "query", store, "SELECT 1", "--parquet", store / "orders" / "result")
    assert done.code == 2
    assert "this lies inside 'orders' of the store" in done.err


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("Could not parse Master URL: 'x'", "org.apache.spark.SparkException: Could not parse Master URL: 'x'"),
        ("[CANNOT_PARSE_MASTER_URL] Could not: 'x'", "[CANNOT_PARSE_MASTER_URL] Could not: 'x'"),
        (
            "Cannot call methods on a stopped SparkContext.",
            "Spark ended before the job did: its master was not reached, or is gone; --verbose shows more",
        ),
        (
            "Aborted.\naiodq.errors.OffsetError: gone\naiodq.errors.OffsetError: too far\non a stopped SparkContext",
            "OffsetError: too far",
        ),
    ],
)
def test_what_java_threw_is_told_and_not_which_call_it_was(
    store: Path, monkeypatch: pytest.MonkeyPatch, raised: str, told: str
) -> None:
    class ThrownError(Py4JJavaError):  # type: ignore[misc]
        def __init__(self) -> None:
            """Do without the JVM that py4j asks for its stack."""

        def __str__(self) -> str:
            return (
                "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
                f": org.apache.spark.SparkException: {raised}\n"
                "\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:3296)\n"
            )

    def start(*_: object) -> None:
        raise ThrownError

    monkeypatch.setattr(pipelines, "start_session", start)
    done = aiodq("spark", "audit", store)
    assert (done.code, done.out) == (1, b"")
    assert done.err == f"aiodq: {told}\n"


def test_why_java_could_not_be_started_is_told_without_its_stack(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        os.write(
            sys.stderr.fileno(),
            b"WARNING: Using incubator modules\nloading settings\nloading classes\nbeginning\n"
            b'Exception in thread "main" org.apache.spark.SparkException: Master must start with spark, or local\n'
            + b"\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1047)\n" * 7
            + b"\t... 7 more\n",
        )
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited.")

    monkeypatch.setattr(pipelines, "start_session", start)
    done = aiodq("spark", "audit", store, "--master", "nonsense")
    assert (done.code, done.out) == (1, b"")
    assert "Master must start with spark, or local" in done.err
    assert "settings" not in done.err, "the last lines only"
    assert "at org" not in done.err
    assert "WARNING" not in done.err


def test_a_ctrl_c_while_java_starts_counts_when_it_has_started(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off, pyspark leaves a Java behind that nobody ends."""
    told: list[str] = []

    class Session:
        def stop(self) -> None:
            told.append("stopped")

    def start(*_: object) -> Session:
        os.kill(os.getpid(), signal.SIGINT)
        told.append("started")
        return Session()

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(pipelines, "start_session", start)
    with pytest.raises(SystemExit) as ended:
        aiodq("spark", "audit", store)
    assert (ended.value.code, told) == (130, ["started", "stopped"])
    assert signal.getsignal(signal.SIGINT) is before


def is_answered_and_nothing_else_is_said(store: Path, _: Path) -> None:
    question = "SELECT count(*) AS n FROM messages"
    with Running("spark", "query", store, question, "--output", "json", "--master", "local[1]") as running:
        assert running.ended() == (0, b'{"n":200}\n', "")


def ends_at_a_ctrl_c_without_a_word(store: Path, tmp_path: Path) -> None:
    """Interrupt it amid a call of Java's, which py4j would break off with a stack, and fail at the next one."""
    done = tmp_path / "lake" / "_checkpoint" / "commits" / "0"
    with Running("spark", "archive", store, tmp_path / "lake", "--master", "local[1]") as running:
        while not done.exists():
            assert running.process.poll() is None
            time.sleep(0.05)
        assert running.ended(signal.SIGINT) == (130, b"", "")


JOBS = (is_answered_and_nothing_else_is_said, ends_at_a_ctrl_c_without_a_word)


@pytest.mark.usefixtures("bare")
def test_a_job_in_a_process_of_its_own_where_there_is_no_other_java_and_no_environment(
    store: Path, tmp_path: Path, seed: int
) -> None:
    """One of them, drawn: each starts a Java, which costs half a minute of a core."""
    random.Random(seed).choice(JOBS)(store, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("job", JOBS)
def test_each_job_in_a_process_of_its_own(store: Path, tmp_path: Path, job: Callable[[Path, Path], None]) -> None:
    job(store, tmp_path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process that is started have nothing in its environment, and find no Java but the extra's."""
    (tmp_path / "bin").mkdir()
    for name in (
        "bash",
        "sh",
        "chmod",
        "dirname",
        "env",
        "ps",
        "uname",
        "nice",
        "rm",
        "ls",
        "cat",
        "readlink",
        "python3",
    ):
        for place in os.defpath.split(os.pathsep):
            if os.path.exists(os.path.join(place, name)) and not (tmp_path / "bin" / name).exists():
                (tmp_path / "bin" / name).symlink_to(os.path.join(place, name))
    for name in os.environ.keys() - {"SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"}:  # those only make Java start sooner
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["query", "{store}/nope", "SELECT 1"], "nope"),
        (["query", "{store}/no*pe", "SELECT 1"], "no store is found"),
        (["archive", "{store}/nope", "{store}/target", "--once"], "nope"),
        (["archive", "{store}", "{store}/target", "--topic", "unknown"], "there is no topic 'unknown'; there are:"),
        (["report", "{store}/nope", "report.html"], "nope"),
        (["audit", "{store}", "--topic", "unknown"], "there is no topic 'unknown'"),
        (["compact", "{store}", "unknown", "latest"], "there is no topic 'unknown'"),
        (["replay", "{store}/none", "{store}"], "there is no directory"),
        (["replay", "{store}/LOCK", "{store}"], "there is no directory"),
        (["replay", "file://{store}/none", "{store}"], "there is no directory"),
        (["replay", "file://{moved}", "{store}"], "was moved or copied"),
        (["replay", "file://{store}", "{store}2"], "is a store: replay reads what"),
        (["replay", "{store}", "{store}2"], "is a store: replay reads"),
        (["replay", "{store}/none", "{store}", "--since", "2026-01-31T12:00"], "for example 2026-01-31T12:00:00+00:00"),
        (["replay", "{store}/none", "{store}", "--until", "2026-01-31"], "--until. It needs a time zone"),
        (["replay", "", "{store}"], "path is empty"),
        (["replay", "{store}/orders", "{store}", "--first", "1.5"], "'1.5' is no whole number"),
        (["replay", "{store}/orders", "{store}", "--into", "a/b"], "'a/b' is no name for a topic"),
        (["compact", "{store}", "orders", ""], "'' is no name for a topic"),
        (["compact", "{store}", "orders", "t#ephemeral"], "only its owner can put into it"),
        (["lag", "{store}/none"], "there is no checkpoint"),
        (["lag", "{store}/none", ""], "path is empty"),
        (["archive", "{store}", "{store}", "--once"], "is a store: name a directory of its own"),
        (["archive", "{store}", "s3://bucket/lake", "--once"], "to object storage go sealed segments (--segments"),
        (["archive", "{store}", "", "--once"], "the path of the archive is empty"),
        (["archive", "{store}", "{store}/LOCK", "--once"], "is no directory: name one for the files"),
        (["archive", "{store}", "file://{store}", "--segments"], "is a store: name a place of its own"),
        (["archive", "{store},{store}/orders", "lake", "--once"], "it is no aiodq store"),
        (["archive", "{store},{other}", "lake", "--once"], "archive is for one store, not for 2"),
        (["report", "{store},{other}", "report.html"], "report is for one store, not for 2"),
        (["compact", "{store},{other}", "orders", "latest"], "compact is for one store, not for 2"),
        (["compact", "{store}", "orders", "latest", "--target", "{store}/LOCK"], "this is no directory"),
        (["compact", "{store}", "orders", "orders"], "topic 'orders' stays as it is"),
        (["compact", "{store}", "ord*", "latest"], "'ord*' is no name for a topic"),
        (["compact", "{store}", "orders", "latest", "--txn-id", ""], "txnId is empty"),
        (["replay", "{store}/orders", "{store}", "--txn-id", ""], "txnId is empty"),
        (["replay", "{store}/orders", "{store}", "--max-message-bytes", "0"], "maxMessageBytes is bytes"),
        (["replay", "{moved}", "{store}"], "was moved or copied: it was written as /lake,"),
        (["archive", "{store}", "{moved}", "--once"], "was moved or copied: it was written as /lake,"),
        (["replay", "{store}/orders", "{store}/LOCK"], "this is no directory"),
        (["replay", "{store}/orders", "{store}", "--first", "5", "--stop", "4"], "it is to stop before 4"),
        (["audit", "{store}", "--conf", "=5"], "KEY=VALUE"),
        (["audit", "{store}", "--conf", "spark.ui.enabled"], "KEY=VALUE, not 'spark.ui.enabled'"),
        (["archive", "{store}", "{store}2", "--segments", "--checkpoint", "c"], "takes no --checkpoint"),
        (["archive", "{store}", "{store}2", "--segments", "--every", "10"], "takes no --every"),
        (["archive", "{store}", "{store}2", "--segments", "--master", "local[*]"], "takes no --master"),
        (["archive", "{store}", "{store}2", "--segments", "--conf", "a=b", "--every", "9"], "no --every and no --conf"),
        (["archive", "{store}", "{store}2", "--once", "--every", "10"], "takes no --every"),
        (["query", "{store}", "SELECT 1", "--output", "table", "--parquet", "{store}2"], "takes no --output"),
    ],
)
def test_no_java_is_started_for_what_is_not_there(
    store: Path, wrong: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starting(*_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(pipelines, "start_session", starting)
    if any("{other}" in word for word in wrong):
        shutil.copytree(store, store.with_name("other"))
    moved = store.with_name("moved")
    (moved / "_spark_metadata").mkdir(parents=True)
    (moved / "_spark_metadata" / "0").write_text('v1\n{"path": "file:///lake/topic=orders/part-0.parquet"}\n')
    places = {"store": store, "other": store.with_name("other"), "moved": moved}
    done = aiodq("spark", *(word.format(**places) for word in wrong))
    assert (done.code, done.out) == (2, b"")
    assert complaint in done.err


class Idle:
    """A session in which nothing runs."""

    sparkContext = property(lambda self: self)  # noqa: N815 - Spark's

    def statusTracker(self) -> Idle:  # noqa: N802 - likewise
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - likewise
        return []

    def stop(self) -> None:
        """It has nothing to end."""


FINDING = AuditFinding("/s", "orders", "/s/orders/0.seg", 24, "the checksum is wrong", 5, 8)
SPAN = " --since 2026-01-31T12:00:00+00:00 --until 2026-02-01T00:00:00+00:00"
MOMENTS = {"since": datetime(2026, 1, 31, 12, tzinfo=UTC), "until": datetime(2026, 2, 1, tzinfo=UTC)}


@pytest.mark.parametrize(
    "case",
    [
        (
            "archive {store} {lake} --topic n* --topic m* --every 2.5 --checkpoint c --hold h --lossy",
            {
                "topics": ["n*", "m*"],
                "every": 2.5,
                "checkpoint": "c",
                "hold": "h",
                "once": False,
                "lossy": True,
            },
            ArchiveSummary("/lake", 7000, 3, 2.0, 1),
            "archived 7,000 messages to /lake: 2.0 s, 3,500 a second, batches: 3, left out: 1 message that",
        ),
        (
            "archive {store} {lake} --once",
            {"topics": None, "checkpoint": None, "hold": None, "once": True, "lossy": False},
            ArchiveSummary("/lake", 1, 1, 2.0),
            "archived 1 message to /lake: 2.0 s, 0 a second, batches: 1\n",
        ),
        (
            "replay {lake} {store} --into late --topic orders --tag red --tag blue --first 3 --stop 9 --txn-id one"
            " --max-message-bytes 99" + SPAN,
            {
                "into": "late",
                "topics": ["orders"],
                "tags": ["red", "blue"],
                "first": 3,
                "stop": 9,
                "txn_id": "one",
                "max_message_bytes": 99,
                **MOMENTS,
            },
            ReplaySummary("/shop", 6, 0.25),
            "replayed 6 messages into /shop: 0.2 s\n",
        ),
        (
            "replay {lake} {store} --txn-id one",
            {"into": None, "topics": None, "tags": None, "first": None, "stop": None, "since": None, "until": None}
            | {"txn_id": "one", "max_message_bytes": None},
            ReplaySummary("/shop", 0, 0.25, repeated=True),
            "nothing to do: 'one' was committed before into /shop\n",
        ),
        (
            "compact {store} orders latest --target {lake}2 --drop-empty --txn-id one --lossy",
            {"target": "{lake}2", "drop_empty": True, "txn_id": "one", "lossy": True},
            CompactSummary("latest", 0, 0, 0.25, repeated=True),
            "nothing to do: 'one' was committed before into latest\n",
        ),
        (
            "compact {store} orders latest",
            {"target": None, "drop_empty": False, "txn_id": None, "lossy": False},
            CompactSummary("latest", 2000, 9, 0.25),
            "kept 9 messages of 2,000 in latest: 0.2 s\n",
        ),
        (
            "report {store} {lake}/r.html --topic orders --lossy",
            {"topics": ["orders"], "lossy": True},
            ReportSummary("/r.html", 1, 9, 0.25, 1),
            "wrote /r.html: 9 messages of 1 topic, 0.2 s, left out: at most 1 message (as many offsets have none)\n",
        ),
        (
            "audit {store} --topic orders",
            {"topics": ["orders"]},
            AuditSummary((), 2, 9, 4_000_000, 2.0),
            "2 segments, 9 messages, 4.0 MB: no damage; 2.0 s, 2.0 MB/s\n",
        ),
    ],
    ids=["archive", "archive-once", "replay", "replay-again", "compact", "compact-plain", "report", "audit"],
)
def test_what_is_asked_for_reaches_the_job_and_what_it_did_is_told(
    store: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, dict[str, Any], Any, str]
) -> None:
    words, given, done, told = case
    lake = store.with_name("lake")
    lake.mkdir()
    job, *rest = words.format(store=store, lake=lake).split()
    asked: dict[str, Any] = {}

    def work(session: Idle, *places: str, progress: Any = None, **options: Any) -> Any:
        assert isinstance(session, Idle)
        assert (progress is not None) == (job == "archive")
        asked.update(options, places=list(places))
        return done

    def start(*how: Any) -> Idle:
        asked["how"] = how
        return Idle()

    monkeypatch.setattr(pipelines, "start_session", start)
    monkeypatch.setattr(pipelines, job, work)
    spoken = ok("spark", job, *rest, "--master", "local[3]", "--conf", "a.b=c=d", "--conf", "e=")
    assert spoken.out.decode().startswith(told)
    wanted = {name: value.format(lake=lake) if isinstance(value, str) else value for name, value in given.items()}
    places = [word for word in rest[: 3 if job == "compact" else 2] if not word.startswith("--")]
    if job == "audit":
        places = places[:1]
    assert asked == {**wanted, "places": places, "how": ("local[3]", {"a.b": "c=d", "e": ""}, f"aiodq {job}")}


def test_an_audit_tells_of_each_finding_and_which_messages_it_costs(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = replace(FINDING, position=8, reason="no header", first=5, stop=5)
    monkeypatch.setattr(pipelines, "start_session", lambda *_: Idle())
    monkeypatch.setattr(pipelines, "audit", lambda *_, **__: AuditSummary((FINDING, none), 2, 9, 0, 2.0))
    done = aiodq("spark", "audit", store)
    assert done.code == 1
    assert done.out.endswith(b": 2 findings; 2.0 s, 0 B/s\n")
    assert done.err.splitlines() == [
        "aiodq: /s/orders/0.seg at byte 24: the checksum is wrong (messages 5 to 7)",
        "aiodq: /s/orders/0.seg at byte 8: no header",
    ]


def test_a_compaction_that_keeps_nothing_says_so(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "start_session", lambda *_: Idle())
    monkeypatch.setattr(pipelines, "compact", lambda *_, **__: CompactSummary("latest", 200, 0, 1.0))
    done = ok("spark", "compact", store, "orders", "latest", "--drop-empty")
    assert done.out == b"kept none of 200 messages: nothing was put into latest\n"


@pytest.mark.parametrize(("more", "level"), [((), None), (("--conf", "spark.log.level=INFO"), "INFO")])
def test_verbose_shows_what_java_warns_of(
    store: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], level: str | None
) -> None:
    def start(_: str, conf: dict[str, str], __: str) -> Idle:
        assert conf.get("spark.log.level") == (level if unheard else level or "WARN")
        os.write(2, b"a warning of Java's\n")
        return Idle()

    monkeypatch.setattr(pipelines, "start_session", start)
    monkeypatch.setattr(pipelines, "audit", lambda *_, **__: AuditSummary((), 0, 0, 0, 1.0))
    for unheard in (False, True):
        done = aiodq("spark", "audit", store, *more, *(() if unheard else ("--verbose",)))
        assert (done.code, done.err) == (0, "" if unheard else "a warning of Java's\n")


def test_a_table_shows_bytes_times_and_what_is_not_there(store: Path, spark: SparkSession) -> None:
    sql = "SELECT X'61FF' AS one, TIMESTAMP '2026-01-31 12:00:00Z' AS two, NULL AS three, 4.5 AS four"
    shown = ok("spark", "query", store, sql).out.decode()
    assert [cell.strip() for cell in shown.splitlines()[3].strip("│").split("│")] == [
        r"a\xff",
        "2026-01-31 12:00:00+00:00",
        "",
        "4.5",
    ]
    assert spark is not None


class Busy(Idle):
    """A session with two stages, of which one is over by the time it is looked at; it notes what is ended."""

    streams = property(lambda self: self)

    def __init__(self) -> None:
        self.ended: list[object] = []

    @property
    def active(self) -> list[Busy]:
        return [self] if not self.ended else []

    def getActiveStageIds(self) -> list[int]:  # noqa: N802 - Spark's
        return [4, 5, 6]

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802 - likewise
        return None if stage == 5 else SimpleNamespace(numCompletedTasks=stage - 4, numTasks=3)

    def stop(self) -> None:
        self.ended.append("query" if not self.ended else "session")


def test_who_watches_tells_of_tasks_and_at_a_ctrl_c_ends_the_queries_and_the_session() -> None:
    told: list[str] = []
    came: list[int] = []
    session, over = Busy(), threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        came.append(signal.SIGINT)

    _watch(cast("SparkSession", session), over, came, tell)
    assert (told, session.ended) == (["2 of 6 tasks"], ["query", "session"])
    over.set()
    _watch(cast("SparkSession", session), over, came, tell)
    assert len(told) == 1
