"""The committed inputs: what the encoders make, and whatever was found to be wrong once.

`python -m tests.fuzz.corpus` writes the former again, after the format has got something new.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

CORPUS: Final = Path(__file__).parent / "corpus"
"""A directory for each target. What fuzzing found is called `found-…`, what older versions wrote `version-…`."""

_SEED: Final = "seed-"


def saved(name: str) -> list[Path]:
    """Return a target's inputs."""
    return sorted((CORPUS / name).iterdir())


def made(name: str) -> dict[str, bytes]:
    """Return what the encoders make for a target: each seed as it is, and once more to have its checksums set right."""
    return {
        f"{_SEED}{number}{'-mended' if mode else ''}": bytes([mode]) + data
        for number, data in enumerate(seeds(name))
        for mode in (0, 1)
    }


def write() -> None:
    """Write the seeds anew."""
    for name in TARGETS:
        directory = CORPUS / name
        directory.mkdir(parents=True, exist_ok=True)
        for path in directory.glob(f"{_SEED}*"):
            path.unlink()
        for file, data in made(name).items():
            (directory / file).write_bytes(data)


if __name__ == "__main__":
    write()
