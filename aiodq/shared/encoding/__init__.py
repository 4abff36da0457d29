"""The encoding of packet contents other than messages: options, statistics, errors, answers."""
