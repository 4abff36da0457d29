"""What a forked child does with its parent's sockets, here without one; real ones are in `test_split_brain.py`."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiodq.shared.connection.finding import inherited
from aiodq.shared.connection.finding.inherited import keep_from_children
from tests.shared.support import PATIENCE

if TYPE_CHECKING:
    import pytest


def test_the_other_end_sees_it_go_and_its_number_stays_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inherited, "_LIVE", WeakSet())
    mine, other = socket.socketpair()
    closed, end = socket.socketpair()
    other.settimeout(PATIENCE)
    with mine, other:
        assert keep_from_children(mine) is mine
        keep_from_children(closed).close()
        inherited._GUARD.acquire()  # as before a fork
        inherited._let_go_in_child()
        assert other.recv(1) == b""
        assert os.path.samestat(os.fstat(mine.fileno()), os.stat(os.devnull))
        assert not os.get_inheritable(mine.fileno())
    end.close()


def test_without_a_descriptor_to_spare_a_fork_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "no more")

    monkeypatch.setattr(os, "open", refuse)
    inherited._GUARD.acquire()
    inherited._let_go_in_child()
    assert inherited._GUARD.acquire(blocking=False), "who noted sockets may go on"
    inherited._GUARD.release()
