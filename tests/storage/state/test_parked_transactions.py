"""What is owed to a topic that cannot be used: parked and dropped, each durably."""

from __future__ import annotations

from aiodq.format.columns import Columns
from aiodq.format.transactions import Block, Commit, Puts
from aiodq.storage.state.transactions.parked_transactions import ASIDE, drop_owed, keep_owed, read_owed
from aiodq.testing import SimulatedFileSystem


def test_what_is_parked_outlives_a_power_cut_and_what_is_dropped_does_not() -> None:
    fs = SimulatedFileSystem({"/s": None})
    keep_owed(fs, "/s", "t", [Block(7, 7, 0, Commit(puts=[Puts("t", 0, Columns([b"a"]))]))])
    parked = [path for path in fs.durable() if path.startswith(f"/s/{ASIDE}/t")]
    assert len(parked) == 1
    (owed,) = read_owed(fs, "/s")["t"]
    assert [block.commit.puts[0].columns.bodies for block in owed.blocks] == [[b"a"]]
    drop_owed(fs, [owed])
    # Else what was given up in the topic by then, which shows that it was applied, would be put again.
    assert owed.path not in fs.durable()
    drop_owed(fs, [owed])
