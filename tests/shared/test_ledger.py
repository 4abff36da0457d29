"""What the tests of crowds rely on: nothing that a process says or complains of keeps it from going on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.processes import killed_at_last
from tests.shared.ledger import Crowd

if TYPE_CHECKING:
    from pathlib import Path

COMPLAINT = 1 << 20
"""Characters: more than a pipe holds."""

COMPLAINING = f"""
import sys
sys.stderr.write("x" * {COMPLAINT} + "\\n")
print("a is 1", flush=True)
sys.stdin.read()
"""


def test_who_complains_of_more_than_a_pipe_holds_goes_on(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with killed_at_last(
        [sys.executable, "-c", COMPLAINING], stdin=pipe, stdout=pipe, stderr=pipe, text=True, group=True
    ) as process:
        crowd = Crowd(tmp_path / "s", process)
        crowd.wait(lambda: "a" in crowd.children)
        crowd.close()
        assert len(crowd.complaints()) == COMPLAINT + 1
