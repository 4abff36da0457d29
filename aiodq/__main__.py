"""`python -m aiodq`: the command line, for when its script is not on the path."""

from __future__ import annotations

import sys

from aiodq.cli import main

if __name__ == "__main__":
    sys.exit(main())
