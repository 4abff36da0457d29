"""One store, many processes: the process that owns it serves the others over a socket in the store's directory.

The owner is whoever holds the lock (`aiodq.storage.io.lock`), so the kernel decides, and ownership ends with the
process. The owner recovers, then listens (`rendezvous`, `owner`), and serves each connection by a `session`, and each
channel of a connection by a `lending`; if nothing else is in progress, a put is written in the step in which it arrives
(`client_puts`), and the thread that has synced it answers (`early_answers`). `aiodq.wire` defines the packets; rare
requests are calls by name (`calls`). What is changed of options and pauses, the owner tells everybody (`changes`,
`watching`).

Every process, the owner's too, talks to the owner over such a connection (`link`), which looks for the next owner when
one is gone, and may find that it is this very process (`remote_store`): then packets pass without a socket (`inside`).
Users hold the same objects as with an exclusive store; in place of the engine stand objects that ask the owner:
`remote_topic` with `remote_puts`, `remote_channel` with `remote_settlement`, `remote_transactions` and `remote_events`,
whose counterparts in the owner are `client_puts`, `client_transactions` and `client_events`. Methods that look into an
engine are overridden in `handles`; the log is read from its files (`history`).

Of the rooms, `server` and `requests` are the owner's, `client` and `consuming` everybody's, and `connection` and
`encoding` are between them.

Across a change of owners:

- A put is kept until it is answered, and sent again, in order and before anything newer. By its control frames
  (`aiodq.format.producers`), the log knows which puts it has. One that waits for room, and that nobody waits for any
  more, is withdrawn, and not sent again (`putting`).
- What was opened is opened again, in turns of the loop, by the options on disk where they were stored (`reopening`).
- A process claims the messages it holds from the next owner (RESUME). That owner delivers nothing that was there before
  until all clients that the previous owner noted in `#clients` have done so, or a second has passed; five seconds for
  clients whose process is alive but late.
- Who was cut off from an owner that goes on claims in the same way what it holds, which is kept for it as long as its
  process lives, up to five seconds (`cut_off`). Who leaves says so (BYE), and what it holds is another's at once.
- What a process had taken that leaves, or was killed, counts as delivered in channels with `max_attempts`, as it does
  over the lives of an exclusive store: a message that kills whoever has it is given up at last.
- A settlement is sent until an owner has confirmed it. Messages that an owner does not know any more were settled.
- A transaction is sent until an owner has reported its outcome. The committed ones are listed in the transaction log,
  by each block, and in `#origins` for those it has forgotten: so a repeated transaction counts once, and one that is
  not committed and whose messages this process no longer holds fails like a stale ack.
- A forked child keeps nothing of its parent (`inherited`): a killed process is gone, whatever it has started.
- A directory that was renamed is not used under its old name, and none is created in its place (`place`).
- An owner whose socket was deleted, as cleanup programs do, takes the name again within a second.
- An owner whose store has failed releases it, and the next one to open it reads what is really there.
"""
