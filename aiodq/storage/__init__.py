"""Files on disk: blocking, one owner, no event loop.

The crash model. Between two syncs of a file, any subset of what was written to it since may reach the disk, in any
order and torn at any sector; a name may be there or not until its directory is synced. Nothing else is assumed. The
commit points, in the order in which an owner passes them:

1. *A segment begins*: file made, header written, directory synced. Before: no file, an empty one, or a torn header;
   nothing was promised in it, and it is made anew. (`ActiveSegment.create`, `recover`)
2. *A batch is durable*: its bytes synced. Before: absent, torn, or whole; a torn one is cut away here, and the cut
   synced before anything is appended. (`ActiveSegment.flush`, `_cut`)
3. *The watermark is noted*: a slot in `watermark`, after 2 and never before, so that it never promises too much.
   (`TopicLog._note`, `WatermarkFile.write`)
4. *A segment is sealed*: footer written, file synced, only then the next segment begins. Before: a torn footer, which
   is cut away as any tail, or a whole one behind frames that are not; those are looked through, and it goes with what
   is cut. (`seal_file`, `_settle_sealed`)
5. *A segment is given up*: what says so (a journal, a checkpoint, `topic.json`) is durable first, then the file is
   unlinked. Before: the file is still there and is given up again. (`TopicLog.give_up`)
6. *Small files*: synced beside, renamed over, directory synced: old or new. (`replace_file`)
7. *A cut*: what was promised is copied to quarantine, durably, before the original is touched. (`_copy`,
   `quarantine_file`, `_cut`)
8. *A topic is deleted*: its directory renamed, the parent synced, then emptied. Before: the topic is there, whole;
   after: what is left of it is swept. (`delete_topic`)
9. *A channel is deleted*: `topic.json` does not name it any more, durably; then its files go. Before: the channel is
   there, whole; after: what is left of the files goes when a channel of that name is made. (`TopicLog.remove_channel`)
10. *A bulk load is committed*: the staged segments synced, with their names, then the commit's record (as 6). Before:
   nobody's files, to be swept; after: an owner will adopt them. (`commit_staged`)
11. *Staged segments are adopted*: their headers written and synced, then the offset noted in the record, then the files
   moved, both directories synced. Before the note: still to be adopted; after: moved by the next owner, before it opens
   the topic. Nothing is appended to the topic in between. (`adopt`, `move_in`)
12. *A commit is done with*: its record says so, or goes. Before: it is done with once more. (`finish_commit`)
13. *What is owed to a topic that cannot be used is kept aside*: in a file of its own (as 6), before the file of
   transactions forgets it, and until the topic holds it durably; then the file goes, its directory synced, before
   anything of it may be deleted from the topic. Before each: it is in both places, and the transactions' numbers tell
   that it is one. (`keep_owed`, `drop_owed`)
14. *Messages are found to be missing*: `topic.json` says which (as 6), before a segment is made behind them or a
   channel passes them. Before: they are found to be missing once more. (`TopicLog._note_losses`)
15. *Zeros are written ahead of the last segment's end*, and synced with the frames before them; sealing and closing cut
   them off. At any time: behind the last frame are zeros, an unfinished write, or both in any mixture of sectors; what
   is not zeros is told as cut off here, and all of it is. (`Preallocation.top_up`, `Preallocation.give_back`, `_cut`)
16. *Whose the committed transactions are is kept*: in `#origins` (as 6), before the file of transactions, whose blocks
   say it, forgets them. Before: the blocks say it; between: both do. (`TransactionOrigins.keep`)
17. *A store says which it is*: in `#store` (as 6), once the first topic's `topic.json` is durable; the file goes when
   the last topic has gone. Before: it says so when it is next opened, by a uuid that nobody has seen yet, or when there
   is a topic again. (`StoreIdentity.make`)

Whether bytes that do not check are an unfinished write or damage is decided by what was promised: the watermark noted
in 3, the watermark each later frame carries, and, for any but the last segment, the existence of the next one, which
begins only after the one before it was synced. Beyond the promise, the log is cut so that what remains is a prefix.
Below it, the bytes are quarantined and reported, and what follows is still delivered.

The rooms, from the disk upward: `io` (the seam to the operating system, durable replacement, locks, quarantine),
`segments` (a segment's file: its ends, its frames, looked through), `state` (what else a topic and a store keep:
journals, transactions, `topic.json`, `#store`, watermark, holds), `read` (a log by offset, while the owner runs too),
`log` (a topic's segments for their owner: appended to, recovered, given up), `bulk` (segments written by others, and
their adoption), `store_layout` (what lies in a store's directory), `offline` (a store looked at, verified, repaired
without an engine). Each knows only those before it.
"""
