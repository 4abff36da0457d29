"""What operations come to: the files as a running system sees them, and what of them is durable."""

from __future__ import annotations

from collections.abc import Iterable

from aiodq.testing.disk import (
    ROOT,
    Disk,
    Dropped,
    Made,
    Operation,
    Ordering,
    Removed,
    Renamed,
    Truncated,
    Wrote,
    apply_change,
)
from aiodq.testing.tree import Node, Tree

__all__ = ["replayed"]


def replayed(trace: Iterable[Operation], ordering: Ordering) -> tuple[Tree, Disk]:
    """Return what is seen after these operations, and the disk below it."""
    disk = Disk(ordering)
    nodes = {ROOT: Node(ROOT, directory=True)}
    for operation in trace:
        disk.apply(operation)
        match operation:
            case Made(number, parent, name, directory):
                nodes[number] = _names(nodes, parent)[name] = Node(number, directory=directory)
            case Renamed(number, parent, name, new_parent, new_name):
                del _names(nodes, parent)[name]
                _names(nodes, new_parent)[new_name] = nodes[number]
            case Removed(parent, name):
                del _names(nodes, parent)[name]
            case Wrote(number) | Truncated(number):
                apply_change(nodes[number].data, operation)
            case Dropped(number, _, evicted) if evicted:
                nodes[number].data[:] = disk.content(number)
            case _:
                pass
    return Tree(nodes[ROOT], max(nodes)), disk


def _names(nodes: dict[int, Node], number: int) -> dict[str, Node]:
    names = nodes[number].names
    if names is None:
        raise ValueError(f"operations name something in {number}, which is no directory")
    return names
