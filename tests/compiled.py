"""What no test can do to a compiled aiodq: exchange a part of it. Such a test is skipped there, and says why.

A compiled function calls the others of its library directly, and constants are in the machine code: what is put in
their place would be of no effect, and the test would show nothing, or fail for no fault of the code.
"""

from __future__ import annotations

import pkgutil
import sys
from types import ModuleType
from typing import Any, Final
from unittest import mock

import pytest

__all__ = ["REASON", "is_compiled", "skip_what_needs_pure_python", "skip_what_patches"]

REASON: Final = "patches compiled code"


def is_compiled(target: object) -> bool:
    """Return whether this module, class or object is of a compiled module of aiodq."""
    if isinstance(target, str):
        target = pkgutil.resolve_name(target)
    known_by = target if isinstance(target, type) else type(target)
    module = target if isinstance(target, ModuleType) else sys.modules.get(known_by.__module__)
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    return name.startswith("aiodq.") and file is not None and not file.endswith((".py", ".pyc"))


def _skip_if_compiled(target: object, name: str) -> None:
    if is_compiled(target):
        shown = target if isinstance(target, str) else getattr(target, "__name__", type(target).__name__)
        pytest.skip(f"{REASON}: {shown}.{name}")


def skip_what_patches(patch: pytest.MonkeyPatch) -> None:
    """Skip each test at the moment at which it patches compiled code, however it goes about it."""
    set_attribute, enter = pytest.MonkeyPatch.setattr, mock._patch.__enter__

    def setattr_or_skip(self: pytest.MonkeyPatch, target: Any, name: Any, *rest: Any, **options: Any) -> None:
        if isinstance(target, str):  # "package.module.name", and `name` is the value
            _skip_if_compiled(*target.rsplit(".", 1))
        else:
            _skip_if_compiled(target, name)
        set_attribute(self, target, name, *rest, **options)

    def enter_or_skip(self: Any) -> Any:
        _skip_if_compiled(self.getter(), self.attribute)
        return enter(self)

    patch.setattr(mock._patch, "__enter__", enter_or_skip)
    patch.setattr(pytest.MonkeyPatch, "setattr", setattr_or_skip)


def skip_what_needs_pure_python(items: list[pytest.Item]) -> None:
    """Skip the tests that are marked `pure`, with the reason that they give."""
    for item in items:
        for marker in item.iter_markers("pure"):
            item.add_marker(pytest.mark.skip(reason=f"aiodq is compiled: {marker.args[0]}"))
