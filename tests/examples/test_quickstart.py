"""The first example, run as its first lines say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.examples.support import run_example

if TYPE_CHECKING:
    from pathlib import Path


def quickstart(*arguments: str) -> list[str]:
    """Run it; return the lines it prints, without their margins."""
    return [line.strip() for line in run_example("quickstart.py", *arguments)]


def test_shows_failure_redelivery_and_restart() -> None:
    lines = quickstart()
    assert lines[6:] == [
        "resized cat.png, attempt 1",
        "resized dog.png, attempt 1",
        "failed broken.png, attempt 1: back in the queue",
        "resized broken.png, attempt 2",
        "closing with 2 jobs left",
        "opened again: 2 jobs left",
        "resized fox.png, attempt 1",
        "resized owl.png, attempt 1",
        "all done: 0 jobs left",
    ]


def test_a_directory_is_kept_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first, second = quickstart(str(store)), quickstart(str(store))
    assert first[0] == second[0] == f"opened {store}: 0 jobs in it"
    assert first[1] == "put cat.png: on disk as message 0"
    assert second[1] == "put cat.png: on disk as message 5"
