"""aiodq for threads: the API of `aiodq` without `await`, for scripts, Django, notebooks and worker threads.

    import aiodq.sync

    with aiodq.sync.open_queue("jobs") as jobs:
        jobs.put(b"resize cat.png")          # on disk when this returns
        for job in jobs:                     # waits for work; ends at shutdown
            with job:                        # ack on success, requeue on exception, release on Ctrl-C
                resize(job.body)

It is the same store, run by the same engine: `open` starts a thread with an event loop of its own, which ends when the
store is closed. Every object may be used by any number of threads at once, and puts that wait at the same time share a
sync. Names, options and errors are those of the asyncio API; the differences:

- `close()` is `aclose()`, and the result of `put_nowait` has `result()`. `put`, `put_many`, `get_many` and `join` take
  a `timeout`, as `get` does.
- A thread takes the place of a task: a message's `with` in a transaction's block of the same thread joins it,
  transactions do not nest in a thread, and `task_done()` means the message that this thread got last.
- *Interrupted* corresponds to *Cancellation*: Ctrl-C, or any other exception that a signal handler raises in a call
  that waits, cancels the call as a task would be cancelled. A `get` loses no message, an `ack` is applied.
- `consume` calls plain functions, in threads of its own.
- If an event loop, or trio, runs in the thread, a call would block it, and raises `WrongContextError`: use `aiodq.open`
  there, in trio another thread. A notebook is the exception, as its cells block its loop in any case. A cell that opens
  a store, and is run again, has to close the one before: it stays open as long as a handle or a message of it has a
  name.
- After a fork, the child has to open the store itself; what the parent opened raises `WrongContextError` there. Each
  prefork worker opens it with `mode="shared"`.
- Where gevent or eventlet has replaced threads by greenlets, as in `gunicorn -k gevent`, these wait for each other as
  threads would; but one store can be open at a time in a process, its loop is asyncio's, and a sync of the disk in a
  thread holds up all greenlets.
- Each call goes to the loop's thread and back, for some 50 microseconds. `put_many`, `get_many` and `ack_many` do that
  once for all their messages, which cost 1 to 4 microseconds each.
- A store that was never closed is closed when the interpreter exits or when its last handle is dropped, with a
  `ResourceWarning`. A daemon thread that waits in a call at the interpreter's exit then ends without a traceback.
"""

from aiodq.sync.channel import Channel
from aiodq.sync.message import DeferredMessage, Message
from aiodq.sync.queue import Queue
from aiodq.sync.receipt import Receipt
from aiodq.sync.store import Events, Store, open, open_queue
from aiodq.sync.topic import Topic
from aiodq.sync.transaction import Transaction

__all__ = [
    "Channel",
    "DeferredMessage",
    "Events",
    "Message",
    "Queue",
    "Receipt",
    "Store",
    "Topic",
    "Transaction",
    "open",
    "open_queue",
]
