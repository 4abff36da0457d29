"""aiodq measured against its peers, in interleaved rounds: `python -m benchmarks`."""
