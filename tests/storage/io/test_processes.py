"""Which processes there are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiodq.storage.io.processes import lives


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it cannot be told from one that still runs")
def test_a_process_that_has_ended_lives_no_more_though_its_parent_has_not_asked_how() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert lives(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(process.pid)
    assert not lives(process.pid)


@pytest.mark.skipif(sys.platform == "win32", reason="there any process is said to live")
def test_a_number_of_no_process_lives_never() -> None:
    assert [lives(number) for number in (0, -1, 1 << 40)] == [False] * 3
    assert lives(os.getpid())
