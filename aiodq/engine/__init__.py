"""The asyncio heart of a store: one engine per store, one per topic, one per channel.

Each topic has one *ioLoop*: a turn of it, `IoLoop.turn`, takes what has happened meanwhile and starts what may start
now. Only a put that finds nothing under way does without: it is written in the caller's own step. The ioLoop decides,
others do: the *segment writer* encodes and writes, the *syncer* has the device synced (by a thread or the kernel:
`SyncBackend`), the *prefetching reader* reads ahead for channels that are behind, the *ack persister* keeps journals
and checkpoints and deletes files. Data flows one way:

    caller -> open batch -> ioLoop -> segment writer -> disk
                                       disk -> prefetching reader -> lease -> caller

Where that is: `topic.puts` up to the open batch (`batch`), `topic.commit` from there to the disk, `reading` and
`channel.source` back, `channel.lease` for what is in the caller's hands, `channel.acks` and `channel.dead_lettering`
for its end. `store` is the whole, with what opens and deletes; `loop` has the futures, timers, threads and syncs.

The life of a put:

    `Producer.put`                 one coroutine, a topic's and a queue's
      `GroupCommit.put_now`        nothing under way, no sync asked for: written in the caller's own step, no future
        `ActiveSegment.append`     one compact frame, one write
          `PooledFile.write_alone` into a write window, memory that the file is mapped to; else by `pwrite`
        `TailCache.add`            into the tail cache. Channels are told nothing: they look at the topic's end
                                   themselves, `ChannelState.follow`
        `Publisher.shown`          wakes who waits
      `GroupCommit.put_lone`       nothing under way, and a sync is asked for: written in the caller's own step
        `Syncer.start`             `SyncBackend.start` has the log synced; its end comes to `GroupCommit.synced_lone`
      `GroupCommit.place`          likewise, of a put that another process has sent (`aiodq.shared.server.session`)
      `GroupCommit.accept`         otherwise: into the open batch, with a future. For room waits `WaitingPuts.enter`
        `IoLoop._advance`          takes the batch once the one before it is written, under "always" once it is durable:
                                   what came in meanwhile shares one write and one sync. This is the group commit
        `GroupCommit.write`        `SegmentWriter.write_at_once`, or `SegmentWriter.write` where it is long or rolls
        `GroupCommit.written`      `Publisher.written`: shown now, or under "always" behind `Publisher.unsynced`
        `Syncer.start`             `SyncBackend.start` has the log synced; its end comes to `GroupCommit.synced`
        `Publisher.synced`         shows what is durable and resolves the futures, `Part.resolve`

The life of a get:

    `Channel.get`
      `ChannelEngine.take_next`    the next message of the lease that is open: counts one up
                                   (`iterate`, which is `async for`, does as much itself, compiled by `Taking.next`;
                                   `get_many`: `take_run`)
      `ChannelEngine.get`          else waits its turn in the wait queue, `WaitQueue.wait`
        `ChannelEngine.take`       asks where the next message is and whether it is wanted (due, not expired, its tag)
          `MessageSource.next`     what is redelivered (`RequeueCache`), what was read ahead (`ReadAhead`), the tail
                                   (`TailCache`); else what the system has in its page cache, which
                                   `PrefetchingReader.read_cached` reads in this step; else `PrefetchingReader.want`,
                                   and `MessageSource.fetched` brings it
          `DeliveryFilter`         how many messages from it on may be delivered as they are, and until when
          `ChannelState.begin`     a lease over them; what is redelivered has entries of its own, one
                                   (`ChannelState.deliver`) or several at a time (`ChannelState.deliver_again`)
      `ChannelState.tick`          takes back what was in flight for too long: `ChannelState.time_out`, redelivered
      `Expirations`                tells channels when times to live end; what nobody has in hand is settled then

The life of an ack:

    `Message.ack_nowait`           sets a byte of the lease; the first since these were last counted tells the channel
      `AckPersister.settled`       the channel has something to write; soon where somebody awaits `Message.ack`
      `AckPersister.flush`         all channels of the topic in one go
        `ChannelState.take_ops`    counts the bytes: a floor, ranges, attempts, due times
        `ChannelJournal.append`    written
        `TopicRetention.passed`    whether the channel is past the oldest segment: `TopicRetention.retain` deletes that
                                   once all channels are, and their acks durable
        `TopicEngine.wait_durable` no ack is durable before its message
        `ChannelJournal.sync`      under "always" at once, else with the interval; then those who await are told

Futures of getters carry wake-ups, never messages: a cancelled getter passes its wake-up on and nothing is lost. A
failure that leaves unknown what the disk holds (a failed sync above all) fails the whole store, with its cause, and
everyone who waits is told.
"""
