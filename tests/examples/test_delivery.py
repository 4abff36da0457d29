"""The examples about retries and delays, run as their first lines say."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tests.examples.support import EXAMPLES, run_example
from tests.processes import killed_at_last

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


def test_what_fails_is_tried_again_and_what_fails_for_good_is_a_dead_letter(tmp_path: Path) -> None:
    for _ in range(2):
        lines = run_example("retrying_worker.py", tmp_path)
        assert sorted(lines[:3]) == [
            "sent to ann@example.org, attempt 1",
            "sent to bob@example.org, attempt 2",
            "sent to eve@example.org, attempt 1",
        ]
        error = "__main__.MailServerError: nobody@example.org, attempt 3"
        assert lines[3:] == [
            f"gave up nobody@example.org, delivered 3 times: {error}",
            "0 mails left, 0 dead letters",
        ]


def test_what_is_due_later_comes_after_a_restart_when_it_is_due() -> None:
    assert run_example("scheduler.py") == ["1 now, 3 later", "good morning", "call Ann", "stretch", "tea is ready"]


def test_every_order_has_one_invoice_though_the_worker_is_killed(tmp_path: Path) -> None:
    example = [sys.executable, str(EXAMPLES / "pipeline.py"), str(tmp_path)]
    for calls in (1, 2, 3):
        with killed_at_last(example) as child:
            wait_for(tmp_path / "invoices", calls, child)
    assert run_example("pipeline.py", tmp_path) == ["1000 orders, 1000 invoices, 0 of them twice"]


def wait_for(directory: Path, growth: int, child: subprocess.Popen[bytes]) -> None:
    """Wait until the directory's files have grown so many times, or the child has ended."""
    sizes: set[int] = set()
    while len(sizes) < growth + 1 and child.poll() is None:
        sizes.add(sum(path.stat().st_size for path in directory.glob("*.seg")))
        time.sleep(0.001)
