"""Errors as an owner sends them, and as they are raised in the client."""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

import aiodq.errors
from aiodq.engine import queue_errors
from aiodq.errors import AiodqError, OwnerLostError, OwnerStalledError, StorageError, StoreFailedError
from aiodq.wire.packets import Fail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = ["error_facts", "error_in", "error_of", "fail_of", "gone", "is_lost", "stalled", "undecided"]

_LONGEST: Final = 4096
_TEXTS: Final = ("name", "path", "text")


def fail_of(error: Exception) -> Fail:
    """Return an error as an owner sends it."""
    position = getattr(error, "position", None)
    return Fail(
        type(error).__name__,
        bool(getattr(error, "retriable", False)),
        getattr(error, "errno", None) or 0,
        -1 if position is None else position,
        getattr(error, "pid", None) or 0,
        _utf8(getattr(error, "path", "")),
        _utf8(str(getattr(error, "message", None) or error)),
    )


def _utf8(text: str) -> str:
    """Return text that can be encoded in a packet: the name of a file need not be UTF-8."""
    return text.encode(errors="backslashreplace")[:_LONGEST].decode(errors="ignore")


def gone(directory: str) -> Fail:
    """Return the substitute for an answer that will not come."""
    return fail_of(OwnerLostError("the owner of the store went before it answered", directory))


def is_lost(fail: Fail) -> bool:
    """Return whether the next owner is to answer."""
    return fail.name == OwnerLostError.__name__


def undecided(error: Exception, directory: str) -> Exception:
    """Return the error for a call that an owner may have done before it ended, as no other one is found for `error`.

    Any other error of the store would say that nothing was done, and perhaps that the call may be repeated.
    """
    if not isinstance(error, StorageError) or isinstance(error, (OwnerLostError, OwnerStalledError, StoreFailedError)):
        return copy(error)
    reason = error.message if (error.path, error.position) == (directory, None) else error  # the path is named once
    text = f"the owner of the store went before it answered, and no other one is found: {reason}"
    return OwnerLostError(text, directory)


def stalled(directory: str, pid: int) -> Fail:
    """Return the substitute for an answer that takes too long."""
    who = f"the owner of the store, process {pid}," if pid else "the owner of the store"
    text = f"{who} does not answer: its event loop is blocked, or it was stopped"
    return fail_of(OwnerStalledError(text, directory, pid=pid))


def error_of(fail: Fail) -> Exception:
    """Return an owner's error, to be raised here."""
    kind = _kind(aiodq.errors, fail.name) or _kind(queue_errors, fail.name)
    if kind is None:
        return AiodqError(f"{fail.name}: {fail.text}")
    if not issubclass(kind, StorageError):
        error: Exception = kind(fail.text)
    else:
        error = kind(fail.text, fail.path)
        if isinstance(error, StorageError):
            error.position = None if fail.position < 0 else fail.position
            error.errno = fail.errno or None
    if isinstance(error, AiodqError):
        error.retriable = fail.retriable
    if hasattr(error, "pid"):
        error.pid = fail.pid or None
    return error


def error_facts(error: Exception) -> dict[str, Any]:
    """Encode an error in the facts of a successful answer."""
    return asdict(fail_of(error))


def error_in(facts: Mapping[str, Any] | None) -> Exception | None:
    """Return the error encoded in the facts of an answer, or None if there is none."""
    values = facts or {}
    if {one.name for one in fields(Fail)} != values.keys() or not all(isinstance(values[key], str) for key in _TEXTS):
        return None
    if not all(isinstance(values[name], int) for name in values.keys() - set(_TEXTS)):
        return None
    return error_of(Fail(**values))


def _kind(module: ModuleType, name: str) -> type[Exception] | None:
    found = getattr(module, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
