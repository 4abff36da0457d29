"""One topic: accepting messages, group commit, retention."""
