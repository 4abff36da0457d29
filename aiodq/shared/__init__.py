"""One store, many processes: the one that owns it serves the others over a socket in the store's directory.

Who owns it is for the lock to say (`aiodq.storage.io.lock`), and so for the kernel: it ends with the process. The owner
recovers, then listens (`rendezvous`), and serves each connection (`session`). What is said is in `aiodq.wire`.
"""
