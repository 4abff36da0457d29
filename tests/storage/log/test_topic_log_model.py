"""A topic's log against a list: random puts, rolls, syncs, power cuts, purges."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aiodq.testing import WatchedFileSystem
from tests.storage.logs import contents, open_log, put, read_topic, segments, set_aside

SEGMENT_BYTES = 700
SECTOR = 512
BODIES = st.lists(st.binary(max_size=90), min_size=1, max_size=6)


class LogMachine(RuleBasedStateMachine):
    """`puts` is every put that may still be there, in order: (offset, bodies)."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.directory = self.root / "topic"
        self.fs = WatchedFileSystem()
        self.puts: list[tuple[int, list[bytes]]] = []
        self.begin = 0

    @initialize()
    def begin_empty(self) -> None:
        self.log = open_log(self.directory, self.fs, segment_bytes=SEGMENT_BYTES)

    def teardown(self) -> None:
        self.log.abandon()
        assert self.fs.open_files == 0
        shutil.rmtree(self.root)

    @property
    def expected(self) -> dict[int, bytes]:
        every = ((first + number, body) for first, many in self.puts for number, body in enumerate(many))
        return {offset: body for offset, body in every if offset >= self.begin}

    @rule(bodies=BODIES, sync=st.booleans())
    def put(self, bodies: list[bytes], *, sync: bool) -> None:
        offsets = put(self.log, bodies, sync=sync)
        self.puts.append((offsets.start, bodies))

    @rule(count=st.integers(2, 5), fill=st.integers(0, 255))
    def put_a_run(self, count: int, fill: int) -> None:
        bodies = [bytes([fill]) * 40_000] * count
        offsets = put(self.log, bodies, atomic=True, sync=False)
        self.puts.append((offsets.start, bodies))

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def sync(self) -> None:
        self.log.sync()
        assert self.log.durable == self.log.end

    @rule(close=st.booleans())
    def reopen(self, *, close: bool) -> None:
        if close:
            self.log.close()
        else:
            self.log.abandon()
        self.begin_again()
        assert self.log.cut_bytes == 0

    def begin_again(self) -> None:
        self.log = open_log(self.directory, self.fs, segment_bytes=SEGMENT_BYTES)

    @rule(seed=st.integers(0, 2**32), hole=st.booleans())
    def lose_power(self, seed: int, *, hole: bool) -> None:
        """Of what was not synced, keep a part, perhaps with a sector missing inside."""
        rng = random.Random(seed)
        durable = self.log.durable
        self.log.abandon()
        for path in segments(self.directory):
            synced, data = self.fs.synced[str(path)], bytearray(path.read_bytes())
            size = rng.randint(synced, len(data))
            if hole and size > synced:
                sector = rng.randrange(synced, size) // SECTOR * SECTOR
                lost = range(max(sector, synced), min(sector + SECTOR, size))
                data[lost.start : lost.stop] = bytes(len(lost))
            path.write_bytes(data[:size])
        self.begin_again()
        assert durable <= self.log.end
        # Whole puts only, and a prefix of them.
        assert self.log.end in {self.begin, 0, *(first + len(bodies) for first, bodies in self.puts)}
        self.puts = [(first, bodies) for first, bodies in self.puts if first < self.log.end]

    @precondition(lambda self: self.puts)
    @rule(share=st.floats(0, 1))
    def give_up(self, share: float) -> None:
        self.log.sync()
        self.begin = max(self.begin, int(self.log.end * share))
        self.log.description.give_up(self.begin)
        gone = [segment for segment in self.log.segments[:-1] if segment.end <= self.begin]
        self.log.hide(gone)
        self.log.remove(gone)
        self.begin = max(self.begin, self.log.begin)

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        found, damages = contents(self.log)
        assert found == self.expected
        assert damages == self.log.damages == []
        assert read_topic(self.directory) == found
        assert set_aside(self.directory) == []


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=14, stateful_step_count=20)


class LogMachineAtLength(LogMachine):
    """The same again, more often and for longer."""


TestLogAtLength = pytest.mark.slow(pytest.mark.timeout(7200)(LogMachineAtLength.TestCase))
TestLogAtLength.settings = settings(max_examples=2000, stateful_step_count=50)
