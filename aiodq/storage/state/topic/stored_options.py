"""The options of a topic and its channels as `topic.json` keeps them, and which of several sets apply.

Only what concerns the data is stored: how an owner syncs and how much memory it takes is its own affair.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from aiodq.options import Backoff, ChannelOptions, Retention, StoreOptions, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Differences",
    "StoredOptions",
    "decode_channel",
    "decode_topic",
    "differences",
    "encode_channel",
    "encode_topic",
    "holding",
    "kept",
    "kept_channel",
    "unknown",
]

_KEPT: Final = (
    "retention",
    "segment_bytes",
    "min_message_bytes",
    "max_message_bytes",
    "max_bytes",
    "max_messages",
    "overflow",
    "compression",
)
_MICROSECOND: Final = timedelta(microseconds=1)

Differences = dict[str, tuple[object, object]]
"""By field name, the old and the new value."""


@dataclass(frozen=True, slots=True)
class StoredOptions:
    """A topic's options as stored on disk.

    Attributes:
        named: whether they were given for this topic; otherwise they are the store's defaults when it was last used.
        options: with the library's defaults in every field that is not stored.
    """

    named: bool
    options: StoreOptions


def kept(options: StoreOptions) -> StoreOptions:
    """Return options with only the stored fields; the others are the library's defaults."""
    return _with_kept(StoreOptions(), options)


def _with_kept(own: StoreOptions, data: StoreOptions) -> StoreOptions:
    return replace(own, **{name: getattr(data, name) for name in _KEPT})


def holding(named: StoreOptions | None, stored: StoredOptions | None, given: StoreOptions | None) -> StoreOptions:
    """Return the options that apply to a topic.

    Args:
        named: those given for this topic, in this process.
        stored: those on disk.
        given: those given to `open`, in this process.
    """
    if named is not None:
        return named
    own = given or StoreOptions()
    if stored is not None and (stored.named or given is None):
        return _with_kept(own, stored.options)
    return own


def unknown() -> StoredOptions:
    """Return the options that apply if the stored ones were lost: nothing is deleted until new ones are given."""
    return StoredOptions(named=True, options=StoreOptions(retention=Retention(consumed="keep")))


def differences(before: StoreOptions | ChannelOptions, after: StoreOptions | ChannelOptions) -> Differences:
    """Return the fields in which two options of one kind differ.

    Not compared are where a channel began, and alarms, which are the store's and mean nothing to a topic.
    """
    names = [field.name for field in fields(before) if field.name not in {"start", "alarms"}]
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def encode_topic(stored: StoredOptions) -> dict[str, object]:
    """Encode a topic's options for JSON."""
    values: dict[str, object] = {name: getattr(stored.options, name) for name in _KEPT}
    retention = asdict(stored.options.retention)
    age = retention.pop("max_age")
    retention["max_age_us"] = None if age is None else timedelta(seconds=seconds(age)) // _MICROSECOND
    return {"named": stored.named, **values, "retention": retention}


def decode_topic(content: Mapping[str, Any]) -> StoredOptions:
    """Decode a topic's options. Fields that a later version may have added are ignored; known ones must be present.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: not what was written.
    """
    values = {name: content[name] for name in _KEPT}
    rules = values["retention"]
    age = rules["max_age_us"]
    retention = Retention(
        max_age=None if age is None else timedelta(microseconds=_whole(age)),
        **{name: rules[name] for name in ("consumed", "unconsumed", "max_bytes", "max_segments")},
    )
    for name in ("segment_bytes", "min_message_bytes", "max_message_bytes", "max_bytes", "max_messages"):
        if values[name] is not None:
            _whole(values[name])
    return StoredOptions(_truth(content["named"]), StoreOptions(**{**values, "retention": retention}))


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _truth(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def kept_channel(options: ChannelOptions) -> ChannelOptions:
    """Return a channel's options as they are stored: all but where it began."""
    return replace(options, start=None)


@lru_cache(maxsize=1024)  # each change of one channel writes those of all, which mostly have the same
def encode_channel(options: ChannelOptions) -> Mapping[str, object]:
    """Encode a channel's options for JSON: those that are not the library's defaults."""
    values: dict[str, object] = {name: new for name, (_, new) in differences(ChannelOptions(), options).items()}
    if options.backoff is not None:
        values["backoff"] = asdict(options.backoff)
    return values


def decode_channel(content: Mapping[str, Any]) -> ChannelOptions:
    """Decode a channel's options. Fields that a later version may have added are ignored.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: not what was written.
    """
    values = _known(ChannelOptions, content)
    values.pop("start", None)
    if values.get("backoff") is not None:
        values["backoff"] = Backoff(**_known(Backoff, dict(values["backoff"])))
    return ChannelOptions(**values)


def _known(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in content.items() if name in names}
