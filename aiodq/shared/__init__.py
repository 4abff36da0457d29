"""One store, many processes: the process that owns it serves the others over a socket in the store's directory.

The owner is whoever holds the lock (`aiodq.storage.io.lock`): the kernel decides, and ownership ends with the process.
The owner recovers the store, then listens (`rendezvous`, `owner`). It serves each connection (`client_connection`) by a
`session`, the topics and channels that it has open by `open_handles`, and each channel of a connection by a `lending`.
If nothing else is in progress, a put is written in the step in which it arrives (`client_puts`), and the thread that
has synced it answers (`early_answers`). `aiodq.wire` defines the packets; rare requests are calls by name (`calls`).
The owner tells every process of changes of options and pauses (`sent_states`, `watching`), and up to ten times a second
of counts that may have changed since it was told (`outdated`). Each process asks once a second for the state of the
whole store, and for the statistics of what has changed (`owner_report`); `overview` answers.

Every process, the owner's included, talks to the owner through a `link`, which looks for the next owner when one is
gone (`owner_search`). If this process becomes the owner itself (`ownership`), packets pass without a socket
(`inside`). Users hold the same objects as with an exclusive store; in place of the engine, these use objects that ask
the owner: `remote_topic` with `remote_puts`, `remote_channel` with its `demand`, `remote_settlement`,
`remote_transactions` and `remote_events`, whose counterparts in the owner are `client_puts`, `lending` and
`lent_settlement`, `client_transactions` and `client_events`. Methods that would look into an engine are overridden in
`handles`; the log is read from its files (`history`).

Of the packages, `server` and `requests` run in the owner, `client` and `consuming` in every process, and `connection`
and `encoding` are used by both.

When the owner changes:

- A put is kept until it is answered, and sent again, in order and before anything newer. From its control frames
  (`aiodq.format.producers`) the log knows which puts it already has. A put that waits for room, and whose caller has
  stopped waiting, is withdrawn and not sent again (`sent_puts`). One that a shutdown withdraws is sent again and
  withdrawn again, as its caller waits to hear whether it was stored. A put into a topic that a process knows to have
  existed does not make it anew. One of its first puts, unanswered while somebody deletes the topic, does: it is sent
  again as if it came after the deletion, which its caller cannot tell apart.
- Topics and channels are opened again, in turns of the loop, with the options on disk if they were stored
  (`reopening`): before puts are sent again those that may have to be made, to see the puts, and the others after. What
  has existed is not made again (`meant`): if it was deleted meanwhile, its objects raise `QueueShutDown`, also if there
  is another one of that name by then. A channel that an earlier aiodq has made is known only by its name. What is in
  memory ends with its owner, so the next one makes it, with the options that it had, until others are named.
- A process claims the messages it holds from the next owner (RESUME, `resuming`). That owner delivers nothing that was
  put before until all clients that the previous owner noted in `#clients` have done so, or a second has passed; five
  seconds for clients whose process is alive but has not claimed yet.
- A process whose connection was cut, although its owner goes on, claims its messages in the same way. They are kept for
  it as long as the process lives, up to five seconds (`cut_off`). A process that leaves says so (BYE), and its
  messages are given to others at once.
- Messages that a process held when it left or was killed count as delivered in channels with `max_attempts`, as they do
  across the runs of an exclusive store: a message that kills every process that gets it is given up in the end.
- Where two processes claim one message, the one that got it later has it (`claims`): the other has made it ready again,
  which no owner has confirmed yet.
- A settlement is sent until an owner has confirmed it. Messages that the next owner finds settled count as
  settled by it. An ack of messages that it has already given to others, as their holder claimed too late, is refused.
- A transaction is sent until an owner has reported its outcome. Committed transactions are listed in the transaction
  log, by each block, and in `#origins` once the log has forgotten them: so a repeated transaction counts once. One that
  is not committed, and whose messages this process no longer holds, fails like a stale ack.
- A `seek`, `pause` or `configure` is sent until an owner has answered it. Its number is on disk in the write that makes
  the change, so no later owner makes it again over what others have changed since (`made_changes`).
- A deletion is sent until an owner has answered it. An owner makes none twice, and a later one none of a topic that was
  made since, nor of a channel: the deletion's number is on disk like that of a change. Who deletes something does not
  open it again meanwhile, which an owner of an earlier aiodq would take for a wish to make it anew. All clients have
  been told of it when it is answered.
- A forked child keeps nothing of its parent (`inherited`): the store of a killed process is free, whatever children it
  has started.
- A directory that was renamed is not used under its old name, and none is created in its place (`store_directory`).
- An owner whose socket was deleted, as cleanup programs do, binds the name again within a second.
- An owner whose store has failed releases it, and the next one to open it reads what is really there.
"""
