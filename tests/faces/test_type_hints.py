"""What public signatures name can be looked up, as pydantic, FastAPI and cattrs do (`typing.get_type_hints`)."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest

import aiodq
import aiodq.sync
import aiodq.testing
from aiodq.shared.handles import shared_channel, shared_queue, shared_store, shared_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def functions_of(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        own = name.startswith("__") or not name.startswith("_")
        if own and inspect.isfunction(function) and function.__module__.startswith("aiodq"):
            yield f"{kind.__qualname__}.{name}", function


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found):
            yield from functions_of(found)
            yield name, found
        elif inspect.isfunction(found):
            yield name, found


@pytest.mark.parametrize(
    "modules",
    [[aiodq], [aiodq.sync], [aiodq.testing], [shared_channel, shared_queue, shared_store, shared_topic]],
    ids=lambda modules: modules[0].__name__,
)
def test_whatever_is_public_says_its_types(modules: list[ModuleType]) -> None:
    seen, missing = 0, list[str]()
    for name, found in chain.from_iterable(map(public, modules)):
        seen += 1
        try:
            typing.get_type_hints(found)
        except (NameError, TypeError) as error:
            missing.append(f"{name}: {error}")
    assert seen >= 20
    assert not missing, missing


def test_a_signature_is_made_of_the_types_themselves() -> None:
    hints = typing.get_type_hints(aiodq.Store.queue)
    assert hints["return"] is aiodq.Queue
    assert hints["channel"] == aiodq.ChannelOptions | None
    signature = inspect.signature(aiodq.Topic.channel, eval_str=True)
    assert signature.return_annotation is aiodq.Channel


def test_types_alone_import_no_shared_stores() -> None:
    code = "import aiodq, sys; print(*(name for name in sys.modules if name.startswith('aiodq.shared')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not done.stdout.strip()
