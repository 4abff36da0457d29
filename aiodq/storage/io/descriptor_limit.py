"""The number of files and sockets that this process may have open."""

from __future__ import annotations

try:
    import resource
except ImportError:  # on Windows, which has no such limit
    _getrlimit = None
else:
    _getrlimit = resource.getrlimit

__all__ = ["descriptor_limit"]


def descriptor_limit() -> int:
    """Return the most descriptors that this process may have now; 0 or less if there is no limit."""
    return 0 if _getrlimit is None else _getrlimit(resource.RLIMIT_NOFILE)[0]
