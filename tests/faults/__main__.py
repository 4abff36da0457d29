"""`python -m tests.faults KIND SEED STEPS [RUNS]` takes random steps, with as many seeds from SEED on."""

from __future__ import annotations

import sys
import traceback

from tests.faults.running import MODES, run_at_random

[kind] = [each for each in MODES if each == sys.argv[1]]
first, steps, *more = map(int, sys.argv[2:])
failed = 0
for seed in range(first, first + (more[0] if more else 1)):
    try:
        run_at_random(kind, seed, steps)
    except Exception:  # noqa: BLE001 - whatever it is, the other seeds are tried as well
        traceback.print_exc()
        failed += 1
print(failed, "failed")
sys.exit(failed > 0)
