"""The engine of a store, on asyncio: one engine per store, one per topic, one per channel.

Each topic has one *ioLoop*. In each turn, `IoLoop.turn`, it looks at what has happened since the last turn and starts
whatever can start. A put that finds nothing in progress bypasses it and is written in the caller's own step. The ioLoop
only decides; others do the work: the *segment writer* encodes and writes, the *syncer* has the device synced (by a
thread or by the kernel: `SyncBackend`), the *prefetching reader* reads ahead for channels that are behind, and the
*ack persister* writes journals and checkpoints and deletes files. Data flows one way:

    caller -> open batch -> ioLoop -> segment writer -> disk
                                       disk -> prefetching reader -> lease -> caller

The packages follow that path. A message goes through `topic.puts` into the open batch (`batch`), through `topic.commit`
to the disk, and through `reading` and `channel.source` back to a consumer. `channel.lease` holds messages in flight;
`channel.acks` and `channel.dead_lettering` settle them. `transactions` is the part of transactions that is the same in
every process; `committing` commits them. `store` is the store as a whole, with opening and deleting; `loop` has the
futures, timers, threads and syncs.

The life of a put:

    `Producer.put`                 one coroutine, a topic's and a queue's
      `GroupCommit.put_now`        nothing in progress, no sync asked for: written in the caller's own step, no future
        `ActiveSegment.append`     one compact frame, one write
          `PooledFile.write_alone` into a write window (a part of the file mapped into memory), else by `pwrite`
        `TailCache.add`            into the tail cache. Channels are not notified: they look at the topic's end
                                   themselves, `ChannelState.follow`
        `Publisher.shown`          wakes the waiters
      `GroupCommit.put_lone`       nothing in progress, a sync asked for: written in the caller's own step
        `Syncer.start`             `SyncBackend.start` has the log synced, then calls `GroupCommit.synced_lone`
      `GroupCommit.place`          the same for a put that another process has sent (`aiodq.shared.server.session`)
      `GroupCommit.accept`         otherwise: into the open batch, with a future. `WaitingPuts.enter` waits for room
        `IoLoop._advance`          takes the batch once the previous one is written, under "always" once it is durable:
                                   all that came in meanwhile shares one write and one sync. This is the group commit
        `GroupCommit.write`        `SegmentWriter.write_at_once`, or `SegmentWriter.write` if it is long or rolls
        `GroupCommit.written`      `Publisher.written`: visible now, under "always" once synced (`Publisher.unsynced`)
        `Syncer.start`             `SyncBackend.start` has the log synced, then calls `GroupCommit.synced`
        `Publisher.synced`         makes what is durable visible and resolves the futures, `Part.resolve`

The life of a get:

    `Channel.get`
      `ChannelEngine.take_next`    the next message of the open lease: increments an index
                                   (`iterate`, which is `async for`, does the same inline; compiled, `Taking.next`
                                   does. `get_many`: `take_run`)
      `ChannelEngine.get`          otherwise waits for its turn in the wait queue, `WaitQueue.wait`
        `ChannelEngine.take`       finds the next message and checks whether it is to be delivered (due, not expired,
                                   a wanted tag)
          `MessageSource.next`     from the redeliveries (`RequeueCache`), what was read ahead (`ReadAhead`), the tail
                                   (`TailCache`); else from the system's page cache, which
                                   `PrefetchingReader.read_cached` reads in this step; else `PrefetchingReader.want`
                                   asks for it, and `MessageSource.fetched` receives it
          `DeliveryFilter`         how many messages from there on may be delivered as they are, and until when
          `ChannelState.run_with_gaps` with few of them, the lease goes on behind gaps (`Lease.leap`): what is settled,
                                   deferred, or not wanted (`DeliveryFilter.leave_out`)
          `ChannelState.begin`     begins a lease over them. Redelivered messages get entries of their own, one
                                   (`ChannelState.deliver`) or several at a time (`ChannelState.deliver_again`)
      `AckPersister.write_now`     with `max_attempts`, journals the delivery before the caller gets the message: see
                                   `handed_ops`
      `ChannelState.tick`          finds messages in flight for too long, which `ChannelState.time_out` requeues
      `Expirations`                tells channels when times to live end: what is not in flight is settled then

The life of an ack:

    `Message.ack_nowait`           sets a byte of the lease; the first one since the last flush notifies the channel
      `AckPersister.settled`       the channel has something to write, soon if a caller awaits `Message.ack`
      `AckPersister.flush`         writes for all channels of the topic together (`AckPersister._commit_lone` does so
                                   for one that awaits each ack, without a task)
        `ChannelState.take_ops`    turns the bytes into a floor, ranges, attempts, due times
        `ChannelJournal.append`    writes them
        `TopicRetention.passed`    is the channel past the oldest segment? Once all are, `TopicRetention.retain` has
                                   `SegmentDeletion.delete` delete the segment, after their acks are durable
        `TopicEngine.wait_durable` no ack is durable before its message
        `ChannelJournal.sync`      under "always" at once, else with the interval; then the waiters are woken

The futures of getters carry wake-ups, never messages: a cancelled getter passes its wake-up on, and nothing is lost. A
failure that leaves it unknown what the disk holds (above all a failed sync) fails the whole store with that cause, and
every waiter gets the error.
"""
