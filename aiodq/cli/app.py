"""The commands by name, and how each of them ends."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import signal
import sys
from typing import TYPE_CHECKING, Final, cast

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

# Imported so that its absence is noticed here, and not half-way through a command.
from rich.console import Console

from aiodq.cli.exits import DONE, INTERRUPTED, MISUSE, WRONG, CommandError, complain, exit_code, forget
from aiodq.cli.output import Output, whole_output
from aiodq.errors import AiodqError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "run"]

_COMMANDS: Final = {
    "demo": (
        "aiodq.cli.demo.command:demo",
        "Kill a process in the middle of its work; prove that nothing is lost.",
    ),
    "put": ("aiodq.cli.commands.put:put", "Put lines or files into a topic."),
    "get": ("aiodq.cli.commands.get:get", "Take messages from a channel and ack them."),
    "tail": ("aiodq.cli.commands.tail:tail", "Look at a topic's newest messages."),
    "channels": ("aiodq.cli.commands.channels:channels", "Show a topic's channels; make or delete one."),
    "peek": ("aiodq.cli.commands.channels:peek", "Look at a channel's next messages."),
    "seek": ("aiodq.cli.commands.channels:seek", "Let a channel go on from another place."),
    "pause": ("aiodq.cli.commands.pausing:pause", "Stop the deliveries of a topic, or of one of its channels."),
    "resume": ("aiodq.cli.commands.pausing:resume", "Let them go on."),
    "requeue-dead": ("aiodq.cli.commands.channels:requeue_dead", "Put dead letters back where they come from."),
    "purge": ("aiodq.cli.commands.topics:purge", "Drop what a topic, or one of its channels, has."),
    "delete-topic": ("aiodq.cli.commands.topics:delete_topic", "Delete a topic for good."),
    "serve": ("aiodq.cli.commands.serve:serve", "Own a store and serve it to other processes until SIGTERM."),
    "who": ("aiodq.cli.commands.who:who", "Show which process owns a store, and which have it open."),
    "stat": ("aiodq.cli.commands.stats:stat", "Show what a store holds."),
    "backup": ("aiodq.cli.commands.backup:backup", "Copy a store, as it is at one moment, while it is used."),
    "holds": ("aiodq.cli.commands.holds:holds", "Show what readers ask to be kept, and release it."),
    "verify": ("aiodq.cli.commands.check:verify", "Read every byte of a store and say what is wrong."),
    "repair": ("aiodq.cli.commands.check:repair", "Settle what verify calls damage."),
    "import-diskqueue": (
        "aiodq.cli.commands.diskqueue:import_diskqueue",
        "Put what a go-diskqueue holds into a topic.",
    ),
    "export-diskqueue": (
        "aiodq.cli.commands.diskqueue:export_diskqueue",
        "Write a topic as the files of a go-diskqueue.",
    ),
    "spark": ("aiodq.cli.commands.spark:spark", "Read, write and process stores with Spark."),
    "bench": ("aiodq.cli.commands.bench:bench", "Measure how fast messages are put, taken and acked on this disk."),
    "dump": ("aiodq.cli.commands.dump:dump", "Show one segment file, frame by frame."),
}


_NO_DOCSTRINGS: Final = 2
"""What `sys.flags.optimize` is with `-OO`."""


def _version() -> str:
    # Not `from aiodq import …`: no module of the package imports plain `aiodq`.
    package = importlib.import_module("aiodq")
    return f"{package.__version__}, compiled" if package.__compiled__ else str(package.__version__)


def app(chosen: str = "") -> App:
    """Return the command line. A command's module is imported when the command is run.

    Args:
        chosen: the command to be run, whose help is its docstring; the others get one line.
    """
    commands = App(
        name="aiodq",
        help="SQLite for queues: look into, feed, empty, check and mend aiodq stores.",
        version=_version,
        default_parameter=Parameter(negative=()),
        console=Output(),
        error_console=Console(stderr=True),
    )
    for name, (target, text) in _COMMANDS.items():
        whole = name == chosen and (sys.flags.optimize < _NO_DOCSTRINGS or _documented(target.partition(":")[0]))
        commands.command(target, name=name, help=None if whole else text)
    return commands


def _documented(name: str) -> bool:
    """Restore the docstrings of a module's functions, which `-OO` removed, from its source; return if that worked."""
    module = importlib.import_module(name)
    try:
        source = inspect.getsource(module)
    except OSError:
        return False
    # Not by `ast.parse`: since Python 3.14 it leaves out the docstrings, too.
    tree = cast("ast.Module", compile(source, name, "exec", ast.PyCF_ONLY_AST, optimize=0))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            getattr(module, node.name).__doc__ = ast.get_docstring(node)
    return True


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors that a user can cause show no traceback."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stdin is None or sys.stdout is None:
        # Otherwise the next file that is opened would get its number, and output for the stream would go there.
        complain("standard input or output is closed; /dev/null will do")
        return MISUSE
    for stream in (sys.stdout, sys.stderr):
        # Paths and names of any bytes can be shown, whatever the locale can.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        with whole_output():
            return _run(arguments)
    except BrokenPipeError:
        # The reader has closed the pipe.
        forget(sys.stdout)
        return DONE


def _told(error: CycloptsError) -> str:
    """Return the message of an error that cyclopts found; it shows surplus arguments as a Python list."""
    if isinstance(error, UnusedCliTokensError):
        return f"There are more arguments than it takes: {' '.join(error.unused_tokens or ())}."
    return str(error)


def _run(arguments: Sequence[str]) -> int:
    try:
        code = app(*arguments[:1])(
            list(arguments), exit_on_error=False, print_error=False, result_action="return_value"
        )
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            forget(sys.stdout)
    except CycloptsError as error:
        complain(f"{_told(error)} See {' '.join(('aiodq', *(error.command_chain or ())))} --help.")
        return MISUSE
    except CommandError as error:
        complain(error)
        return error.code
    except AiodqError as error:
        complain(error)
        return exit_code(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        complain(error)
        forget(sys.stdout)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED + signal.SIGINT
    return code if isinstance(code, int) else DONE
