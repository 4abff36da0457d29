"""From the open batch to the disk: the ioLoop, group commit, segment writer, syncer and publisher."""
