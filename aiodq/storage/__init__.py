"""The files on disk. Everything here blocks, serves one owner, and knows no event loop.

The crash model. Between two syncs of a file, any subset of the bytes written to it since (by calls or through a
mapping) may reach the disk, in any order and torn at any sector; a new name may or may not exist until its directory
is synced. Nothing else is assumed. The commit points, in the order in which an owner passes them:

1. *A segment begins*: file created, header written, directory synced. Before: no file, an empty one, or a torn header;
   it holds nothing that was durable, and is created again. (`ActiveSegment.create`, `recover`)
2. *A batch is durable*: its bytes synced. Before: absent, torn, or whole; a torn one is truncated, and the truncation
   synced before anything is appended. (`ActiveSegment.flush`, `_cut`)
3. *The watermark is noted*: a slot in `watermark`, always after 2, so that it never promises too much.
   (`TopicLog._note`, `WatermarkFile.write`)
4. *A segment is sealed*: footer written and file synced; only then does the next segment begin. Before: a torn footer,
   truncated like any torn tail, or a whole footer after incomplete frames; those frames are scanned, and the footer is
   truncated with the rest. (`seal_file`, `_settle_sealed`)
5. *A segment is given up*: the record that allows it (a journal, a checkpoint, `topic.json`) is durable first, then the
   file is unlinked. Before: the file is still there and is given up again. (`TopicDescription.give_up`)
6. *A small file is replaced*: the new one written under a temporary name, synced, renamed over the old one, directory
   synced. Before: the old one. (`replace_file`)
7. *A truncation*: what was durable is copied to quarantine, durably, before the original is touched.
   (`_copy`, `quarantine_file`, `_cut`)
8. *A topic is deleted*: its directory renamed, the parent synced, then emptied. Before: the whole topic is there;
   after: its remains are removed at the next opening. (`delete_topic`)
9. *A channel is deleted*: `topic.json` durably no longer names it; then its files are removed. Before: the whole
   channel is there; after: remains are removed when a channel of that name is created. Before the last one goes, the
   topic's directory is synced: only channels explain a gap among segments that were given up (5).
   (`TopicDescription.remove_channel`)
10. *A bulk load is committed*: the staged segments and their names synced, then the commit's record written (as 6).
   Before: uncommitted files, which are removed later; after: an owner will adopt them. (`commit_staged`)
11. *Staged segments are adopted*: their headers written and synced, then the offset noted in the record, then the files
   moved, both directories synced. Before the note: still to be adopted; after: moved by the next owner, before it opens
   the topic. Nothing is appended to the topic in between. (`adopt`, `move_in`)
12. *A commit is finished*: its record says so, or is removed. Before: it is finished again. (`finish_commit`)
13. *Transactions for an unusable topic are parked*: in a file of its own (as 6), before the transaction log
   forgets it. Once the topic holds it durably, the file is removed and its directory synced, before anything of it may
   be deleted from the topic. Before each step it is in both places, and the transactions' numbers show that both are
   the same. (`keep_owed`, `drop_owed`)
14. *Messages are found to be missing*: `topic.json` lists them (as 6), before a segment is created after them or a
   channel passes them. Before: they are found to be missing again. (`TopicDescription.note_losses`)
15. *Zeros are written ahead of the last segment's end*, and synced with the frames before them; sealing and closing
   truncate them. At any time, the last frame is followed by zeros, an unfinished write, or any mixture of both by
   sector. All of it is truncated, and what is not zeros is reported. (`Preallocation._fill`,
   `Preallocation.give_back`, `_cut`)
16. *The origins of committed transactions are kept*: in `#origins` (as 6), before the transaction log forgets the
   blocks that hold them. Before: the blocks hold them; between: both do. (`TransactionOrigins.keep`)
17. *A store gets its identity*: in `#store` (as 6), once the first topic's `topic.json` is durable; the file is removed
   with the last topic. Before: it is made when the store is next opened or has a topic again, with a uuid that has not
   been used yet. (`StoreIdentity.make`)
18. *What a channel settled is durable*: a block of its journal, written and synced. Before: absent, torn, or whole; a
   torn one is truncated, and the truncation synced, before anything is written after it, and its messages are
   redelivered. Later a checkpoint (as 6) replaces the journal: the old one is of an earlier generation, and ignored.
   (`ChannelJournal._write`, `ChannelJournal._tidy`, `ChannelJournal._fold`)
19. *A transaction is committed*: its block in `#transactions`, synced; only then is anything of it put or settled.
   Before: its block is absent, torn, or whole, and nothing of it was put or settled. After: the next owner puts and
   settles what is missing, as the numbers show. Once topics and channels hold all of it durably, a new header forgets
   the blocks.
   (`TransactionFile.append`, `TransactionFile._wait_durable`, `_blocks`, `TransactionFile.reset`)
20. *A backup is complete*: everything in it synced, then its directory renamed, the parent synced. Before: it has a
   temporary name, and the next backup to that place removes it. (`Backup.finish`)

Whether bytes that fail their check are an unfinished write or damage depends on what was durable: by the watermark
noted in 3, by the watermark that each later frame carries, and, for all but the last segment, by the existence of the
next one, which begins only after the one before it was synced. Beyond the promise, the log is truncated to a
prefix. Below it, the bytes are quarantined and reported, and what follows is still delivered.

The packages, from the disk upward: `io` (the interface to the operating system, durable replacement, locks,
quarantine), `segments` (one segment file: header, footer, frames, scanning), `state` (what else a topic and a store
keep: journals, transactions, `topic.json`, `#store`, watermark, holds), `read` (a log by offset, also while the owner
runs), `log` (a topic's segments for their owner: appending, recovery, deletion), `bulk` (segments written by others,
and their adoption), `store_layout` (what is in a store's directory), `offline` (a store inspected, verified and
repaired without an engine) and `backup` (a copy, while its owner runs). Each knows only those before it.
"""
