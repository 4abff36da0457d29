"""How a store of the blocking client ends, and who may use it where."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
import aiodq.sync
from tests.processes import WATCHDOG, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aiodq.opening import Mode


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program of which `path` is the argument, all warnings shown."""
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("aiodq")]


def left_since(before: list[threading.Thread]) -> list[str]:
    """Return the names of threads that were begun since and do not end: those of a pool do so by themselves, soon."""
    begun = [thread for thread in threads() if thread not in before]
    for thread in begun:
        thread.join(WATCHDOG)
    return [thread.name for thread in begun if thread.is_alive()]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_receipt_tells_its_offset_after_the_store_was_closed(tmp_path: Path, mode: Mode) -> None:
    with aiodq.sync.open_queue(tmp_path / "jobs", mode=mode) as jobs:
        receipts = [jobs.put_nowait(b"x") for _ in range(3)]
    assert [receipt.result(timeout=1) for receipt in receipts] == [0, 1, 2]


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_no_block_begins_with_what_is_closed(tmp_path: Path, mode: Mode) -> None:
    with aiodq.sync.open(tmp_path, mode=mode) as store, store:
        jobs = store.queue("jobs")
    for closed in (store, jobs):
        with pytest.raises(aiodq.QueueShutDown, match="closed"), closed:
            pytest.fail("the block was run")
    store.close()


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_nor_does_an_asynchronous_one(tmp_path: Path, mode: Mode) -> None:
    async with aiodq.open(tmp_path, mode=mode) as store, store:
        jobs = store.queue("jobs")
    for closed in (store, jobs):
        with pytest.raises(aiodq.QueueShutDown, match="closed"):
            async with closed:
                pytest.fail("the block was run")
    await store.aclose()


def test_closing_ends_the_thread_and_may_be_repeated(tmp_path: Path) -> None:
    before = threads()
    store = aiodq.sync.open(tmp_path)
    jobs = store.queue("jobs")
    jobs.put(b"a")
    assert len(threads()) > len(before)
    store.close()
    assert left_since(before) == []
    store.close()
    with pytest.raises(aiodq.QueueShutDown):
        jobs.get()
    with pytest.raises(aiodq.QueueShutDown):
        jobs.put(b"b")
    with pytest.raises(aiodq.QueueShutDown):
        store.transaction()
    jobs.close()


def test_the_loop_ends_though_a_call_is_taken_back_just_as_it_takes_what_came_last(tmp_path: Path) -> None:
    class TakenBack(deque[Any]):
        def __bool__(self) -> bool:
            if not loop.ended or len(self):
                return len(self) > 0
            self.append(loop.stop)
            return True

        def popleft(self) -> Any:
            if loop.ended:
                self.clear()  # as by the thread that posted it
            return super().popleft()

    store = aiodq.sync.open(tmp_path)
    loop = store._loop_thread._loop
    loop.__dict__["_inbox"] = TakenBack(loop._inbox)
    store.close()
    assert loop.loop.is_closed()


def test_what_there_is_to_see_is_seen_after_the_end(tmp_path: Path) -> None:
    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs")
        jobs.put(b"a")
    assert (jobs.qsize(), jobs.depth, store.topics()) == (1, 1, ["jobs"])
    assert store.health().reasons == ("the store is closed",)
    assert "closed" in repr(store)
    assert "closed" in repr(jobs)


def test_who_waits_is_told_of_the_end(tmp_path: Path) -> None:
    jobs = aiodq.sync.open_queue(tmp_path)
    with ThreadPoolExecutor(5) as pool:
        waiting: list[Future[Any]] = [pool.submit(jobs.get), pool.submit(list, jobs), pool.submit(jobs.consume, print)]
        while len(jobs._loop_thread._loop.running) < len(waiting):
            pass
        closing = [pool.submit(jobs.close), pool.submit(jobs.close)]
        with pytest.raises(aiodq.QueueShutDown):
            waiting[0].result(WATCHDOG)
        assert waiting[1].result(WATCHDOG) == []
        assert waiting[2].result(WATCHDOG) is None
        assert [each.result(WATCHDOG) for each in closing] == [None, None]


def test_nobody_holds_it_any_more(tmp_path: Path) -> None:
    before = threads()
    jobs = aiodq.sync.open_queue(tmp_path)
    receipt = jobs.put_nowait(b"a")
    with pytest.warns(ResourceWarning, match="never closed"):
        del jobs, receipt
        gc.collect()
    with aiodq.sync.open_queue(tmp_path) as jobs:  # at once: it waits for the thread that closes
        assert jobs.get().body == b"a"
    assert left_since(before) == []


def test_a_message_keeps_it_open(tmp_path: Path) -> None:
    jobs = aiodq.sync.open_queue(tmp_path)
    jobs.put(b"a")
    message = jobs.get()
    del jobs
    gc.collect()
    message.ack()
    with pytest.warns(ResourceWarning, match="never closed"):
        del message
        gc.collect()
    with aiodq.sync.open_queue(tmp_path) as jobs:
        assert jobs.depth == 0


@pytest.mark.parametrize(
    "more",
    [
        "",
        """import threading
threading.Thread(target=lambda: [jobs.get() for _ in range(9)], daemon=True).start()
threading.Thread(target=jobs.consume, args=(print,), daemon=True).start()""",
    ],
    ids=["no thread", "threads"],
)
def test_the_interpreter_ends_and_it_is_closed(tmp_path: Path, more: str) -> None:
    done = run(
        "import aiodq.sync, sys\n"
        "jobs = aiodq.sync.open_queue(sys.argv[1], aiodq.StoreOptions(sync='os'))\n"
        f"{more}\njobs.put_nowait(b'a')",
        tmp_path,
    )
    assert done.returncode == 0
    assert f"ResourceWarning: store was never closed [{tmp_path}]" in done.stderr
    assert "Error" not in done.stderr.replace("ResourceWarning", "")
    assert "Traceback" not in done.stderr
    assert [message.body for message in aiodq.open_reader(tmp_path).topic("queue").scan()] == [b"a"]


def test_threads_of_the_program_go_on_using_it_while_the_interpreter_waits_for_them(tmp_path: Path) -> None:
    done = run(
        "import aiodq.sync, sys, threading\n"
        "jobs = aiodq.sync.open_queue(sys.argv[1])\n"
        "def work():\n"
        "    threading.main_thread().join()\n"
        "    print(jobs.put(b'a'))\n"
        "    jobs.close()\n"
        "threading.Thread(target=work).start()\n",
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("lock", ["aiodq.sync.loop_thread._REGISTRY", "aiodq.engine.lock_wait._MUTEX"])
def test_a_child_that_is_forked_while_another_thread_opens_a_store_can_open_one(tmp_path: Path, lock: str) -> None:
    done = run(
        "import aiodq.sync, os, signal, sys, threading, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # of forks beside threads
        "held = threading.Event()\n"
        "def hold():\n"
        f"    with {lock}:\n"
        "        held.set()\n"
        "        threading.Event().wait(0.2)\n"
        "threading.Thread(target=hold).start()\n"
        "held.wait()\n"
        "if not os.fork():\n"
        "    signal.alarm(20)\n"
        "    aiodq.sync.open_queue(sys.argv[1]).close()\n"
        "    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))\n",
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_a_forked_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    done = run(
        "import aiodq.sync, os, sys, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # of forks beside threads
        "jobs = aiodq.sync.open_queue(sys.argv[1])\n"
        "jobs.put(b'a')\n"
        "if not os.fork():\n"
        "    try:\n"
        "        jobs.put(b'b')\n"
        "    except aiodq.WrongContextError as error:\n"
        "        print(error, repr(jobs), flush=True)\n"
        "    sys.exit(3)\n"  # with all that the interpreter does at its end
        "print(os.waitstatus_to_exitcode(os.wait()[1]), jobs.get().body, flush=True)\n"
        "jobs.close()\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told, parent = done.stdout.splitlines()
    assert "open one in the child after the fork" in told
    assert "of the parent process" in told
    assert parent == "3 b'a'"
    assert done.stderr == ""


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_child_that_was_forked_in_the_blocks_leaves_them_quietly(tmp_path: Path, mode: str) -> None:
    done = run(
        "import aiodq.sync, os, sys, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # of forks beside threads
        f"with aiodq.sync.open(sys.argv[1], mode={mode!r}) as store, store.queue('jobs') as jobs:\n"
        "    jobs.put(b'a')\n"
        "    with store.transaction() as tx, jobs.get() as job, job.renewing():\n"
        "        tx.put('done', b'c')\n"
        "        if not os.fork():\n"
        "            sys.exit(3)\n"
        "        code = os.waitstatus_to_exitcode(os.wait()[1])\n"
        "    print(code, jobs.depth, store.topic('done').end_offset)\n"
        "    if not os.fork():\n"
        "        tx = None\n"
        "    else:\n"
        "        code = os.waitstatus_to_exitcode(os.wait()[1])\n"
        "        print(code, jobs.put(b'b'))\n",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["3 0 1", "0 1"]


def test_work_of_a_forked_child_does_not_pass_for_done(tmp_path: Path) -> None:
    done = run(
        "import aiodq.sync, os, sys, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "with aiodq.sync.open(sys.argv[1]) as store:\n"
        "    try:\n"
        "        with store.transaction():\n"
        "            child = os.fork()\n"
        "    except aiodq.WrongContextError:\n"
        "        sys.exit(4)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")


def test_a_running_loop_is_not_blocked(tmp_path: Path) -> None:
    jobs = aiodq.sync.open_queue(tmp_path)

    async def main() -> int:
        with pytest.raises(aiodq.WrongContextError, match=r"use aiodq\.open with"):
            jobs.put(b"a")
        with pytest.raises(aiodq.WrongContextError, match=r"use aiodq\.open with"):
            aiodq.sync.open(tmp_path / "other")
        assert "open" in repr(jobs)
        return await asyncio.to_thread(jobs.put, b"b")

    assert asyncio.run(main()) == 0
    assert not (tmp_path / "other").exists()
    jobs.close()


def test_trio_is_not_blocked_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits in `get` would hold up the one that puts."""
    with aiodq.sync.open_queue(tmp_path) as jobs:
        with monkeypatch.context() as within_trio:
            trio = SimpleNamespace(lowlevel=SimpleNamespace(current_trio_token=object))
            within_trio.setitem(sys.modules, "trio", trio)
            with pytest.raises(aiodq.WrongContextError, match=r"trio\.to_thread\.run_sync"):
                jobs.get(timeout=0)
            with pytest.raises(aiodq.WrongContextError, match=r"trio\.to_thread\.run_sync"):
                aiodq.sync.open(tmp_path / "other")
            assert "open" in repr(jobs)
        assert jobs.put(b"a") == 0
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("how", ["a block", "renewed", "of a transaction"])
def test_a_generator_that_is_collected_on_the_loop_leaves_its_blocks(tmp_path: Path, how: str) -> None:
    """Garbage is collected in whichever thread makes more of it, and the loop's makes much."""

    def begun() -> Iterator[None]:
        with ExitStack() as stack:
            message = jobs.get()
            if how == "of a transaction":
                stack.enter_context(message.transaction()).put("done", b"never")
            else:
                stack.enter_context(message)
            if how == "renewed":
                stack.enter_context(message.renewing())
            yield

    with aiodq.sync.open(tmp_path) as store:
        jobs = store.queue("jobs", aiodq.ChannelOptions(visibility_timeout=3600))
        jobs.put(b"a")
        held = [begun()]
        next(held[0])
        store._loop_thread.call(held.clear)
        assert jobs.get(timeout=WATCHDOG).attempts == 1
        assert "done" not in store.topics()


def test_the_cells_of_a_notebook_may_block_their_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))

    async def cell() -> bytes:
        with aiodq.sync.open_queue(tmp_path) as jobs:
            jobs.put(b"a")
            return jobs.get().body

    assert asyncio.run(cell()) == b"a"


def test_an_import_of_ipython_alone_is_no_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))

    async def main() -> None:
        with pytest.raises(aiodq.WrongContextError):
            aiodq.sync.open_queue(tmp_path)

    asyncio.run(main())


def test_what_could_not_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a store")
    before = threads()
    with pytest.raises(aiodq.NotAStoreError) as caught:
        aiodq.sync.open(tmp_path)
    del caught
    assert left_since(before) == []


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_what_is_stopped_is_closed_and_leaves_no_thread(tmp_path: Path, mode: Mode) -> None:
    before = threads()
    store = aiodq.sync.open(tmp_path, mode=mode)
    queue = store.queue("jobs")
    queue.put(b"x")
    with pytest.raises(aiodq.InvalidOptionError):
        store.stop(-1)
    assert queue.get(1).body == b"x"
    store.stop(1)
    assert left_since(before) == []
    with pytest.raises(aiodq.QueueShutDown):
        queue.put(b"y")


def test_what_is_closed_can_be_stopped(tmp_path: Path) -> None:
    store = aiodq.sync.open(tmp_path)
    queue = store.queue("jobs")
    store.close()
    store.stop()
    queue.stop(grace=0)


@pytest.mark.parametrize("mode", ["exclusive", "shared", "client"])
def test_what_is_closed_can_be_looked_at(tmp_path: Path, mode: Mode) -> None:
    with ExitStack() as stack:
        if mode == "client":
            stack.enter_context(aiodq.sync.open(tmp_path, mode="shared"))
        with aiodq.sync.open(tmp_path, mode=mode) as store:
            queue = store.queue("jobs")
            queue.put(b"x")
        assert store.health().reasons == ("the store is closed",)
        assert store.stats().failed is None
        assert queue.stats().name == "default"
        assert not queue.full()


@pytest.mark.parametrize("way", [aiodq.sync.open, aiodq.sync.open_queue])
def test_where_no_thread_is_free_nothing_warns_of_an_await(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[[Path], Any]
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, pytest.raises(aiodq.StorageError, match="no thread is free"):
        patch.setattr(threading.Thread, "start", start)
        way(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        gc.collect()
    assert caught == []
    way(tmp_path).close()
