"""`python -m tests.proof.devices`: see the package. Exit code 1: a promise was broken; 3: nothing could be tried."""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from tests.proof.devices.cuts import DeviceCase, cut_device, workloads
from tests.proof.devices.disk import FILE_SYSTEMS, RecordedDisk, want_of
from tests.proof.mutants import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEW_MOUNTS: Final = 0x20000
_PRIVATE: Final = 1 << 18 | 1 << 14
"""CLONE_NEWNS, and MS_PRIVATE | MS_REC."""

_UNTRIED: Final = 3


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.devices", description="Cut the power of real disks.")
    parser.add_argument("--file-systems", default=",".join(FILE_SYSTEMS), help="with commas between them")
    parser.add_argument("--seed", type=int, help="drawn, and printed, without")
    parser.add_argument("--moments", type=int, default=40, help="of each workload")
    parser.add_argument("--states", type=int, default=3, help="at each moment")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), metavar="NAME", help="with a safeguard taken away")
    parser.add_argument("workloads", nargs="*", help="all of them, without")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.file_systems.split(",") if name not in FILE_SYSTEMS]:
        parser.error(f"{', '.join(unknown)}: the file systems are {', '.join(FILE_SYSTEMS)}")
    if unknown := [name for name in options.workloads if name not in workloads()]:
        parser.error(f"{', '.join(unknown)}: the workloads are {', '.join(workloads())}")
    return options


def keep_mounts_to_oneself() -> None:
    """Have what is mounted from now on be gone with this process, however it ends, if the kernel lets it mount."""
    if sys.platform == "linux" and os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.unshare(_NEW_MOUNTS)
        libc.mount(None, b"/", None, _PRIVATE, None)


def refusal(file_system: str) -> str:
    """Return why the kernel does not let this process have such a disk, or nothing."""
    try:
        with RecordedDisk(FILE_SYSTEMS[file_system]):
            return ""
    except OSError as error:  # root without CAP_SYS_ADMIN, as in most containers
        return str(error)


def main(argv: Sequence[str] | None = None) -> int:
    """Try what the arguments ask for; return the exit code."""
    options = _arguments(argv)
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    print(f"seed {seed}")
    keep_mounts_to_oneself()
    states = violations = 0
    for name in options.file_systems.split(","):
        if want := want_of(name) or refusal(name):
            print(f"{name}: not tried: {want}", flush=True)
            continue
        for workload in options.workloads or workloads():
            with MUTANTS[options.mutant].patch() if options.mutant else nullcontext():
                cuts = cut_device(DeviceCase(name, workload, seed, options.moments, options.states))
            states += cuts.states
            violations += len(cuts.violations)
            print(f"{name}: {workload}: {cuts.states} power cuts, {len(cuts.violations)} violations", flush=True)
            print(*cuts.violations[:5], sep="\n", end="\n" if cuts.violations else "", flush=True)
    print(f"{states} power cuts, {violations} violations")
    return int(bool(violations)) if states else _UNTRIED


if __name__ == "__main__":
    sys.exit(main())
