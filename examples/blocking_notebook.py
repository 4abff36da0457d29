"""A notebook, as cells (VS Code, Spyder and jupytext show `# %%` as such): look into a queue, try a change, put back.

python examples/blocking_notebook.py [DIRECTORY]

No cell needs `await`, though Jupyter runs a loop of its own: `aiodq.sync` blocks the cell, as any other call does.
"""

# %% Open a queue. When this cell is run again, the queue that it opened before is closed first: a new one of its name
# would not let it go, as long as a message of it has a name.
import sys
import tempfile

import aiodq.sync

directory = sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp(prefix="aiodq-")
if "jobs" in globals():
    globals()["jobs"].close()
jobs = aiodq.sync.open_queue(directory)

# %% Something to look at.
jobs.put_many([b"%d" % number for number in range(1000)])
jobs.put(b"tea time", delay=3600)
print(jobs.qsize(), "ready,", jobs.deferred(), "later")

# %% Look without taking.
print([message.body for message in jobs.scan(5, 8)])
print(next(jobs.deferred_messages()).body)

# %% Take a batch and try something on it. What fails is put back by hand, as if it had never been taken.
batch = jobs.get_many(100)
even = [message for message in batch if int(message.body) % 2 == 0]
jobs.ack_many(even)
for message in batch:
    if not message.settled:
        message.release()
print(jobs.qsize(), "ready,", jobs.in_flight(), "in flight")

# %% The last cell. Without it, the queue is closed when the kernel ends, with a warning.
jobs.close()
