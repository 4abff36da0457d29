"""Compression: what is stored, what is refused, and what it may allocate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aiodq.errors import CorruptionError, FormatVersionError, MissingExtraError
from aiodq.format import codecs
from aiodq.format.codecs import CODEC_NONE, CODEC_ZSTD, codec_number, compress, decompress, raw_limit
from tests.format.support import MIB, memory_bound

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def without_zstandard(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    codecs._zstandard.cache_clear()
    yield
    codecs._zstandard.cache_clear()


@given(st.binary(max_size=2000) | st.binary(min_size=1, max_size=8).map(lambda part: part * 500))
def test_payload_comes_back(payload: bytes) -> None:
    codec, stored = compress(payload, CODEC_ZSTD)
    assert len(stored) <= len(payload)
    assert bytes(decompress(memoryview(stored), codec, len(payload))) == payload


def test_codec_none_stores_the_payload_itself() -> None:
    payload = b"x" * 1000
    assert compress(payload, CODEC_NONE) == (CODEC_NONE, payload)
    assert decompress(payload, CODEC_NONE, 0) is payload


def test_what_compressing_does_not_shorten_is_stored_as_it_is() -> None:
    payload = bytes(range(200))
    assert compress(payload, CODEC_ZSTD) == (CODEC_NONE, payload)


def test_what_a_reader_would_not_expand_is_stored_as_it_is() -> None:
    assert compress(bytes(MIB), CODEC_ZSTD)[0] == CODEC_ZSTD
    payload = bytes(8 * MIB)
    assert compress(payload, CODEC_ZSTD) == (CODEC_NONE, payload)


@pytest.mark.parametrize("codec", [2, 7, 8, 255])
def test_unknown_codec(codec: int) -> None:
    with pytest.raises(FormatVersionError, match=f"codec {codec} is not known") as caught:
        decompress(b"abc", codec, 3, path="some.seg", position=64)
    assert (caught.value.path, caught.value.position) == ("some.seg", 64)


def test_codec_names() -> None:
    assert [codec_number(None), codec_number("zstd")] == [CODEC_NONE, CODEC_ZSTD]


@pytest.mark.usefixtures("without_zstandard")
def test_missing_extra() -> None:
    assert codec_number(None) == CODEC_NONE
    with pytest.raises(MissingExtraError, match=r"pip install 'aiodq\[zstd\]'"):
        codec_number("zstd")
    with pytest.raises(MissingExtraError):
        decompress(b"", CODEC_ZSTD, 1)


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_arbitrary_bytes_do_not_decompress(stored: bytes, raw: int) -> None:
    for data in (stored, zstandard.MAGIC_NUMBER.to_bytes(4, "little") + stored):
        with memory_bound(MIB):
            refuse_or_keep_the_size(data, min(raw, raw_limit(len(data))))


@given(st.integers(0, 60), st.binary(min_size=1, max_size=8))
def test_damaged_frames_of_the_library_are_refused(at: int, junk: bytes) -> None:
    payload = b"some text, and some more text, and more " * 20
    stored = bytearray(compress(payload, CODEC_ZSTD)[1])
    stored[at : at + len(junk)] = junk
    with memory_bound(4 * MIB):
        refuse_or_keep_the_size(bytes(stored), len(payload))


def refuse_or_keep_the_size(stored: bytes, raw: int) -> None:
    try:
        payload = decompress(stored, CODEC_ZSTD, raw, path="some.seg", position=64)
    except CorruptionError as error:
        assert (error.path, error.position) == ("some.seg", 64)
    else:
        assert len(payload) <= raw


def test_a_bomb_is_refused_before_it_is_expanded() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    sizeless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB))
    for stored in (bomb, sizeless):
        with memory_bound(MIB), pytest.raises(CorruptionError, match="does not hold"):
            decompress(stored, CODEC_ZSTD, MIB)


def test_a_frame_without_its_size_is_refused() -> None:
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100)
    with pytest.raises(CorruptionError, match="does not hold"):
        decompress(stored, CODEC_ZSTD, 100)
