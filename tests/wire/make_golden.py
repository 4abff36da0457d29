"""`python -m tests.wire.make_golden` writes the packets of this version that are not there yet; it changes none."""

from __future__ import annotations

from aiodq.wire.stream import encode_packet
from tests.wire.support import EXAMPLES
from tests.wire.test_packets import GOLDEN

if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, message in EXAMPLES.items():
        path = GOLDEN / f"{name}.bin"
        if not path.exists():
            path.write_bytes(encode_packet(message, 7))
