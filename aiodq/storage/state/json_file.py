"""Small JSON files that name their kind and version and carry a checksum."""

from __future__ import annotations

import json
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aiodq.errors import CorruptionError, FormatVersionError, InvalidNameError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["decode_checked", "encode_checked", "taking_apart"]

_LONG: Final = 16_384
"""Characters above which a file is not indented for people: that is ten times as slow, as it is done in Python."""

_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, InvalidNameError)
"""What decoding a file raises if it is whole but not as expected."""


def encode_checked(name: str, version: int, content: Mapping[str, object]) -> bytes:
    """Return a file's bytes: the content under `name`, with the version, and the checksum beside it."""
    inner = {"version": version, **content}
    text = _canonical(inner)
    if len(text) > _LONG:
        return f'{{"crc32":"{_crc(text)}",{json.dumps(name)}:{text}}}\n'.encode()
    return json.dumps({name: inner, "crc32": _crc(text)}, indent=1, sort_keys=True).encode() + b"\n"


def decode_checked(data: bytes, name: str, version: int, path: str, what: str) -> dict[str, Any]:
    """Decode a file and return its content.

    Args:
        data: the bytes.
        name: the name of the content in it.
        version: the only version accepted.
        path: the file's path, for errors.
        what: the file in words, for errors.

    Raises:
        CorruptionError: not what was written.
        FormatVersionError: another version.
    """
    with taking_apart(path, what):
        outer = json.loads(data)
        inner = outer[name]
        if outer["crc32"] != _crc(_canonical(inner)):
            raise CorruptionError(f"{what} has a wrong checksum", path, 0)
        if inner["version"] != version:
            message = f"{name} format version {inner['version']}; this aiodq reads {version}: upgrade to open it"
            raise FormatVersionError(message, path, 0)
        return dict(inner)


@contextmanager
def taking_apart(path: str, what: str) -> Iterator[None]:
    """Report unexpected content in the block as damage of the file.

    Raises:
        CorruptionError: the content is not as expected.
    """
    try:
        yield
    except _UNREADABLE as cause:
        raise CorruptionError(f"{what} cannot be read: {cause}", path, 0) from cause


def _canonical(content: object) -> str:
    """Return the text of which the checksum is taken."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"
