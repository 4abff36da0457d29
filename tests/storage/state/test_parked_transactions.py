"""What is owed to a topic that cannot be used: parked and dropped, each durably."""

from __future__ import annotations

from aiodq.format.columns import Columns
from aiodq.format.transactions import FIRST_BLOCK, Block, Commit, Puts
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


def test_every_wrong_byte_is_damage_and_costs_no_other_transaction() -> None:
    fs = SimulatedFileSystem({"/s": None})
    bodies = [b"a", b"b", b"c"]
    blocks = [
        Block(number, 0, 0, Commit([], [Puts("t", 0, Columns([body]))])) for number, body in enumerate(bodies, 1 << 40)
    ]
    keep_owed(fs, "/s", "t", blocks)
    (owed,) = read_owed(fs, "/s")["t"]
    data, end = fs.image()[owed.path], owed.blocks[-1].end
    assert data is not None
    assert not owed.damages
    for at in range(FIRST_BLOCK, end, 5):
        changed = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        (found,) = read_owed(SimulatedFileSystem({"/s": None, f"/s/{ASIDE}": None, owed.path: changed}), "/s")["t"]
        left = [block.commit.puts[0].columns.bodies[0] for block in found.blocks]
        assert found.damages
        assert len(left) == 2
