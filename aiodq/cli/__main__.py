"""`python -m aiodq.cli`."""

from __future__ import annotations

import sys

from aiodq.cli import main

if __name__ == "__main__":
    sys.exit(main())
