"""`python -m tests.model MODE SEED STEPS [RUNS]` takes random steps, with as many seeds from SEED on."""

from __future__ import annotations

import sys
import time
import traceback

from tests.model.running import run_at_random
from tests.model.world import MODES

mode, first, steps, *more = sys.argv[1:]
[kind] = [each for each in MODES if each == mode]
failed = 0
for seed in range(int(first), int(first) + int(more[0] if more else 1)):
    began = time.monotonic()
    try:
        run_at_random(kind, seed, int(steps))
    except Exception:  # noqa: BLE001 - whatever it is, the other seeds are tried as well
        traceback.print_exc()
        failed += 1
    print(seed, "after", round(time.monotonic() - began, 1), "s")
sys.exit(failed > 0)
