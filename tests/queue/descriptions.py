"""`topic.json` as earlier and later versions write it."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def description(path: Path, topic: str = "events") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / topic / "topic.json").read_bytes())["topic"]
    return found


def describe(path: Path, content: dict[str, Any], topic: str = "events") -> None:
    """Write a description with its checksum right."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    outer = {"topic": content, "crc32": f"{zlib.crc32(text):08x}"}
    (path / topic / "topic.json").write_text(json.dumps(outer))


def make_older(path: Path, topic: str = "events") -> None:
    """Leave the description as it was before options were kept."""
    content = description(path, topic)
    describe(path, {name: value for name, value in content.items() if "options" not in name}, topic)
