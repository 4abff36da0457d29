"""What is done with each of many values comes to the same, whether it is done by a loop or by one call for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiodq.format import frame, many
from aiodq.format.columns import Columns
from aiodq.format.frame import slice_frames
from aiodq.format.layout import FRAME_BYTES, FRAME_RECORDS

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = [0, 1, 64, 100, FRAME_BYTES // 2, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1]
PER_TEST = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""Which way is taken is the same for all examples of a test."""

pytestmark = pytest.mark.pure("a compiled module does not look again whether it is compiled")


class Bytes(bytes):
    """Bytes of a subclass, which are not stored as they are."""

    __slots__ = ()


@pytest.fixture(autouse=True, params=[False, True], ids=["at once", "by a loop"])
def compiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have these modules take themselves for compiled, or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many, "COMPILED", request.param)
        patch.setattr(frame, "COMPILED", request.param)
        yield


@pytest.mark.parametrize(
    ("items", "all_bytes"),
    [
        ([], True),
        ([b"", b"a"], True),
        ([b"a", Bytes(b"b")], False),
        ([Bytes(b"a"), b"b"], False),
        (["a", "b"], False),
        ([b"a", None], False),
    ],
)
def test_a_subclass_or_another_type_among_them_is_found(items: list[Any], *, all_bytes: bool) -> None:
    assert many.all_are(items, bytes) is all_bytes


@PER_TEST
@given(st.lists(st.binary(max_size=40)))
def test_what_was_measured_is_cut_into_the_same_parts(values: list[bytes]) -> None:
    lengths, total = many.measured(values)
    assert (lengths, total) == ([len(value) for value in values], sum(len(value) for value in values))
    assert many.cut(b"".join(values), lengths) == values
    assert many.cut(b"".join(values), tuple(lengths)) == values


@PER_TEST
@given(st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from([1, 2, 700, 1300])), min_size=1, max_size=6))
def test_frames_end_before_the_message_that_does_not_fit(runs: list[tuple[int, int]]) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    slices = slice_frames(Columns([b""] * len(sizes), lengths=sizes))  # it asks for the lengths alone
    expected, start, total = [], 0, 0
    for at, size in enumerate(sizes):
        if at > start and (total + size > FRAME_BYTES or at - start == FRAME_RECORDS):
            expected.append((start, at))
            start, total = at, 0
        total += size
    assert slices == [*expected, (start, len(sizes))]
