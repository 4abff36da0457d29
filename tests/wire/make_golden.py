"""`python -m tests.wire.make_golden` writes the packets of this version that are not there yet; it changes none."""

from __future__ import annotations

from aiodq.wire.stream import encode_packet
from tests.wire.support import EXAMPLES
from tests.wire.test_packets import golden

if __name__ == "__main__":
    for name, message in EXAMPLES.items():
        path = golden(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(encode_packet(message, 7))
