"""Options that are kept on disk, and what has to wait for them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

from aiodq.engine.topic.effective_options import EffectiveOptions
from aiodq.options import StoreOptions
from aiodq.storage.state.topic.topic_description import TopicDescription
from aiodq.storage.state.topic.topic_meta import save_meta
from aiodq.testing import SimulatedFileSystem
from aiodq.testing.filesystem import SimulatedFile
from tests.proof.mutants.registry import Patch, mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiodq.options import ChannelOptions
    from aiodq.storage.state.topic.stored_options import StoredOptions


@mutant("stored options")
def options_act_before_they_are_written() -> Patch:
    def remember(description: TopicDescription, options: StoredOptions, _change: int = 0) -> None:
        description.meta = replace(description.meta, options=options)

    return mock.patch.object(TopicDescription, "choose", remember)


@mutant("pauses and options of channels")
def options_of_a_channel_act_before_they_are_written() -> Patch:
    def remember(description: TopicDescription, name: str, options: ChannelOptions, _change: int = 0) -> None:
        named = {**description.meta.channel_options, name: options}
        description.meta = replace(description.meta, channel_options=named)

    return mock.patch.object(TopicDescription, "choose_for_channel", remember)


@mutant("stored options")
def options_act_before_they_are_synced() -> Patch:
    def quick(description: TopicDescription, options: StoredOptions, _change: int = 0) -> None:
        description.meta = replace(description.meta, options=options)
        with mock.patch.object(SimulatedFileSystem, "sync_directory"), mock.patch.object(SimulatedFile, "sync"):
            save_meta(description._fs, description._directory, description.meta)

    return mock.patch.object(TopicDescription, "choose", quick)


@mutant("stored options")
@contextmanager
def a_topic_goes_by_what_open_was_given() -> Iterator[None]:
    """Neither of two safeguards is there: what is on disk does not hold, and what holds acts without being there."""

    def forgetful(_: object, __: object, given: StoreOptions | None) -> StoreOptions:
        return given or StoreOptions()

    always = property(lambda _: True, lambda _, __: None)
    with (
        mock.patch("aiodq.engine.store.store_engine.holding", forgetful),
        mock.patch("aiodq.engine.store.taking_over.holding", forgetful),
        mock.patch.object(EffectiveOptions, "acting", always, create=True),
    ):
        yield
