"""Files on disk: blocking, one owner, no event loop."""
