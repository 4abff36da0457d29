"""Validation of what is put."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from aiodq.engine.batch.draft import Draft
from aiodq.engine.batch.put_batch import PLAIN, Accepted
from aiodq.errors import InvalidMessageError, InvalidMessageTypeError, InvalidOptionError, InvalidOptionTypeError
from aiodq.values import several, shown_typed, span_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from aiodq.format.layout import BytesLike

__all__ = [
    "LONGEST_KEY",
    "LONGEST_TAG",
    "MOST_HEADERS",
    "RESERVED_HEADER",
    "check_headers",
    "check_labels",
    "checked",
    "list_bodies",
    "no_body",
    "span_ns",
]

T = TypeVar("T")

LONGEST_TAG: Final = 1 << 16
LONGEST_KEY: Final = 1 << 20
MOST_HEADERS: Final = 1 << 16
RESERVED_HEADER: Final = "aiodq-for"
"""The header that names the one channel that a message is for (`aiodq.engine.channel.addressed`): not for users."""


def checked(draft: Draft, now_ns: Callable[[], int]) -> Accepted:
    """Return what is to be stored of a draft besides its body, if put at this wall time.

    Raises:
        InvalidMessageError: it cannot be stored.
    """
    tag, key, headers = draft.tag, draft.key, draft.headers
    if tag is None and key is None and headers is None and draft.delay is None and draft.ttl is None:
        return PLAIN
    check_labels(tag, key)
    tag = None if tag is None else str.__str__(tag)
    key = None if key is None else bytes(key)
    if headers is not None:
        headers = check_headers(headers) or None
        if headers and RESERVED_HEADER in headers:
            raise InvalidMessageError(
                f"the header {RESERVED_HEADER!r} says which channel a requeued letter is for, and is aiodq's own: "
                "choose another name, which does not begin with 'aiodq-'"
            )
    wait, life = span_ns(draft.delay, "delay"), span_ns(draft.ttl, "ttl")
    now = now_ns() if wait or life is not None else 0
    return Accepted(tag, key, headers, now + wait if wait else 0, 0 if life is None else now + life)


def check_labels(tag: str | None, key: BytesLike | None) -> None:
    """Raise unless a message may have this tag and key.

    Raises:
        InvalidMessageError: one is of another type, or too long.
    """
    if tag is not None and (not isinstance(tag, str) or len(_utf8(tag, "tag")) > LONGEST_TAG):
        _refuse("tag", f"a tag is text of up to {LONGEST_TAG} bytes, or None", tag, str, "tag='red'")
    if key is not None and (not isinstance(key, (bytes, bytearray, memoryview)) or _size(key) > LONGEST_KEY):
        expected = f"a key is up to {LONGEST_KEY} bytes, or None"
        _refuse("key", expected, key, (bytes, bytearray, memoryview), "key=b'customer-17', key=text.encode()")


def _size(key: BytesLike) -> int:
    try:
        return key.nbytes if isinstance(key, memoryview) else len(key)
    except ValueError as cause:
        raise InvalidMessageError(f"a key cannot be read: {cause}") from cause


def _refuse(what: str, expected: str, given: object, kind: type | tuple[type, ...], example: str) -> NoReturn:
    if isinstance(given, kind):
        raise InvalidMessageError(f"{expected}; this {what} is longer")
    raise InvalidMessageTypeError(f"{expected}, not {shown_typed(given)}: write {example}")


def no_body(given: object) -> str:
    """Return why something cannot be a message's body, and what to write instead."""
    example = "put(json.dumps(value).encode())"
    if isinstance(given, str):
        example = "put(text.encode())"
    elif given is None:
        example = "put(b'') for a message of nothing"
    elif isinstance(given, Draft):
        example = "put_many([draft])"
    elif hasattr(given, "tobytes"):
        example = "put(value.tobytes())"
    elif _is_buffer(given):
        example = "put(bytes(value))"
    return f"a message's body is bytes-like, not {shown_typed(given)}: write {example}"


def _is_buffer(given: object) -> bool:
    """Return whether something holds bytes that others may read, such as an `mmap`."""
    try:
        memoryview(given).release()  # type: ignore[arg-type]  # whether it is a buffer is what is asked here
    except (TypeError, ValueError, BufferError):
        return False
    return True


def list_bodies(bodies: Iterable[T]) -> list[T]:
    """Return several bodies, rather than one, whose bytes would also be several items.

    Raises:
        InvalidMessageError: they are not; a `TypeError` too.
    """
    found = several(bodies)
    if found is None:
        raise InvalidMessageTypeError(
            f"put_many takes a list of bodies, not {shown_typed(bodies)}: write put_many([body, ...])"
        )
    return list(found)


def span_ns(span: float | timedelta | None, what: str) -> int | None:
    """Return seconds, or a `timedelta`, as nanoseconds; None for None.

    Raises:
        InvalidMessageError: negative, infinite, or no number; a `TypeError` too if of another type.
    """
    if span is None:
        return None
    try:
        return int(span_seconds(what, span) * 1_000_000_000)
    except InvalidOptionTypeError as error:
        raise InvalidMessageTypeError(str(error)) from None
    except InvalidOptionError as error:
        raise InvalidMessageError(str(error)) from None


def _utf8(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidMessageTypeError(
            f"headers are a mapping of text to text, not {shown_typed(text)}: write headers={{'attempt': str(3)}}"
        )
    try:
        return text.encode()
    except UnicodeEncodeError as cause:
        raise InvalidMessageError(f"{what}: text that is not Unicode: {cause}") from cause


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return a copy of valid headers, of plain `str`: a member of an Enum would print as something else.

    Raises:
        InvalidMessageError: they are of another type, too many, or too long.
    """
    if not isinstance(headers, Mapping):
        raise InvalidMessageTypeError(
            f"headers are a mapping of text to text, not {shown_typed(headers)}: write headers={{'trace': 'a1b2'}}"
        )
    if len(headers) >= MOST_HEADERS:
        raise InvalidMessageError(f"up to {MOST_HEADERS - 1} headers, not {len(headers)}")
    if sum(len(_utf8(name, "headers")) + len(_utf8(value, "headers")) for name, value in headers.items()) > LONGEST_KEY:
        raise InvalidMessageError(f"headers of up to {LONGEST_KEY} bytes in all")
    return {str.__str__(name): str.__str__(value) for name, value in headers.items()}
