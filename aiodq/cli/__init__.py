"""The command line: `aiodq put`, `get`, `tail`, `stat`, `verify`, `repair`, `dump` and `demo`.

Exit codes: 0 done, 1 something is wrong (with the store, the input, or the demonstration's proof), 2 misuse (arguments,
paths, names, a store that another process has open). After a signal: 128 plus its number.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_NEEDED: Final = ("cyclopts", "rich")
_MISUSE: Final = 2
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: without the program's name; None for those of the process.
    """
    try:
        from aiodq.cli.app import run  # noqa: PLC0415 - what it imports may be missing
    except ImportError as cause:
        if (cause.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(f"aiodq: the command line needs {cause.name}: pip install 'aiodq[cli]'\n")
        return _MISUSE
    except KeyboardInterrupt:
        return _INTERRUPTED
    return run(sys.argv[1:] if arguments is None else arguments)
