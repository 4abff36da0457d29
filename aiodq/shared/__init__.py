"""One store, many processes: the one that owns it serves the others over a socket in the store's directory.

Who owns it is for the lock to say (`aiodq.storage.io.lock`), and so for the kernel: it ends with the process. The owner
recovers, then listens (`rendezvous`, `owner`), and serves each connection (`session`), each channel of one by a
`lending`; a put is written in the step in which it comes, where nothing is under way (`placing`). What is said is in
`aiodq.wire`; what is rare is said by a name (`calls`).

Every process, the owner's too, asks over such a connection (`link`), which looks for the next owner when one is gone,
and may find that this is the process itself (`remote_store`). The objects that users hold are those of a store that one
process has; what stands behind them in place of its engine asks: `remote_topic` with `remote_puts`, `remote_channel`
with `remote_settlement`, `remote_transactions` and `remote_events`, whose other halves are `client_transactions` and
`client_events`. What looks into an engine is done otherwise by `handles`; what is in the log is read from its files
(`history`).

Across a change of owners:

- A put is kept until it is answered, and said again, in order and before anything newer. The log knows by control
  frames (`aiodq.format.producers`) which it has.
- What a process holds it claims from the next owner (RESUME). That one delivers nothing of what was there before all
  whom the owner before has noted in `#clients` have done so, or a second has gone by; five for who lives, and is late.
- What is settled is said until an owner has confirmed it. What it knows nothing of any more was settled before.
- A transaction is said until an owner has told what became of it. Which are committed the file of transactions says, in
  each one's own block, and `#origins` for those that it has forgotten: so one that comes again counts once, and one
  whose messages are not this process's any more, and that is not committed, fails as a stale ack does.
- A child that a process has forked keeps nothing of it (`inherited`): who is killed is gone, whatever it has started.
- A directory that was renamed meanwhile is found by nobody under its old name, and none is made in its place (`place`).
- An owner whose socket somebody has deleted, as programs do that clean up, takes the name anew within a second.
- An owner whose store has failed lets it go, and whoever opens it next reads what is really there.
"""
