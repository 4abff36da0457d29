"""A failed attempt: its cause, as text that fits into a header, and its consequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from aiodq.outcomes import Reject, Retry

if TYPE_CHECKING:
    from aiodq.options import Backoff

__all__ = ["NO_CAUSE", "Cause", "Consequence", "Handling", "cause_of", "described", "header_text", "reason_of"]

_LONGEST: Final = 1024
"""Bytes of a text from outside; a message whose headers exceed what can be stored could never be given up."""

_CUT: Final = "…"


class Cause(NamedTuple):
    """Why an attempt failed.

    Attributes:
        error: type and text of the exception; empty if there was none.
        note: a clause for the reason, after the number of deliveries: `, the last …`; or empty.
    """

    error: str = ""
    note: str = ""


NO_CAUSE: Final = Cause()


class Consequence(NamedTuple):
    """The consequence of a failed attempt.

    Attributes:
        text: the consequence, as text.
        final: whether it was the last attempt.
    """

    text: str
    final: bool = False


@dataclass(slots=True)
class Handling:
    """How `consume` treats one message, and the outcome.

    Attributes:
        backoff: how long the message waits after a failure if its channel has no backoff: without any wait, one
            message that always fails would take all of the consumer's time.
        consequence: the consequence of its failure, or None.
    """

    backoff: Backoff
    consequence: Consequence | None = None


def cause_of(error: BaseException, note: str = "") -> Cause:
    """Return the cause that a dead letter names for an exception; of a `Retry` or `Reject`, what it was raised from."""
    source: BaseException | None = error
    if isinstance(error, (Retry, Reject)):
        source = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return Cause("" if source is None else described(source), note)


def described(error: BaseException) -> str:
    """Return type and text of an exception, `ValueError: no such address`, as header text."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    text = _text(error)
    return header_text(f"{name}: {text}" if text else name)


def reason_of(rejection: Reject) -> str:
    """Return the reason that a handler gave, of whatever type, as header text; empty if it gave none."""
    reason: object = rejection.reason
    return "" if reason is None else header_text(reason)


def header_text(text: object) -> str:
    """Return text that can be stored: what is not Unicode is escaped, what is too long is truncated at a character."""
    data = _text(text).encode("utf-8", "backslashreplace")
    if len(data) > _LONGEST:
        data = data[: _LONGEST - len(_CUT.encode())].decode("utf-8", "ignore").encode() + _CUT.encode()
    return data.decode()


def _text(given: object) -> str:
    if isinstance(given, str):
        return str.__str__(given)  # its value: `str()` of a member of an Enum is its name
    try:
        return str(given)
    except Exception:  # noqa: BLE001 - a message must not be stuck because its error has no readable text
        return "(its text cannot be had)"
