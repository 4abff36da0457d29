from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aiodq as package
from aiodq.cli import main
from tests.cli.support import PROGRAM, Owner, Short, aiodq, environment, fill, ok, read_by_nobody

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = ("demo", "dump", "get", "put", "repair", "stat", "tail", "verify")


def one_line(text: str) -> str:
    """Return the complaint, having made sure that it is one line and no traceback."""
    lines = text.splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("aiodq: ")
    return lines[0]


def test_version_is_the_package_s() -> None:
    shown = f"{package.__version__}, compiled" if package.__compiled__ else package.__version__
    assert ok("--version").out.decode().strip() == shown


def test_help_names_every_command() -> None:
    text = ok("--help").out.decode()
    assert [name for name in COMMANDS if f" {name} " not in text] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_of_its_own(command: str) -> None:
    text = ok(command, "--help").out.decode()
    assert f"aiodq {command}" in text
    assert "--json" in text


@pytest.mark.parametrize(
    ("job", "told"), [("archive", "a topic name or pattern"), ("replay", "only messages of these topics")]
)
def test_help_says_which_jobs_take_patterns_of_topics(job: str, told: str) -> None:
    (line,) = [line for line in ok("spark", job, "--help").out.decode().splitlines() if "--topic " in line]
    assert told in line


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ("nope", "aiodq --help."),
        ("put", "aiodq put --help."),
        ("put STORE t --tag a --tag b", "aiodq put --help."),
        ("stat STORE surplus", "aiodq stat --help."),
        ("get STORE t -n x", "aiodq get --help."),
        ("spark nope", "aiodq spark --help."),
        ("spark lag", "aiodq spark lag --help."),
    ],
)
def test_misuse_names_the_help_of_that_command(arguments: str, more: str) -> None:
    done = aiodq(*arguments.split())
    assert done.code == 2
    assert one_line(done.err).endswith(f" See {more}")


def test_a_file_without_a_name_is_shown_as_such(tmp_path: Path) -> None:
    done = aiodq("put", str(tmp_path / "store"), "t", "")
    assert (done.code, one_line(done.err)) == (2, "aiodq: '' cannot be read: No such file or directory")


def helped(*command: str) -> str:
    run = [sys.executable, *command]
    return subprocess.run(run, capture_output=True, env=environment(), check=True, text=True).stdout


def test_without_docstrings_a_command_has_the_same_help_and_without_source_a_line() -> None:
    code = """
import sys
from aiodq.cli import main

for command in sys.argv[1:]:
    print(command, main([*command.split(), "--help"]))
"""
    commands = (*COMMANDS, "spark query")
    shown = helped("-c", code, *commands)
    assert [name for name in commands if f"{name} 0\n" not in shown or f"aiodq {name} " not in shown] == []
    without_source = """
import inspect

def gone(_):
    raise OSError("there is no source")

inspect.getsource = gone
print("---")
main(["put", "--help"])
"""
    same, line = helped("-OO", "-c", code + without_source, *commands).split("---\n")
    assert same == shown
    assert line.splitlines()[2] == "Put lines or files into a topic."


def test_the_package_run_as_a_module_is_the_command_line(tmp_path: Path) -> None:
    """As `aiodq.cli` is, which all other tests with processes run."""
    fill(tmp_path, "t", [b"one"])
    command = [sys.executable, "-m", "aiodq", "tail", str(tmp_path), "t"]
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"one\n", b"")
    command = [sys.executable, "-m", "aiodq", "tail", str(tmp_path), "none"]
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("missing", "run"),
    [
        ("cyclopts", "import runpy; runpy.run_module('aiodq', run_name='__main__')"),
        ("rich", "from aiodq.cli import main; sys.exit(main(['stat', '.']))"),
    ],
)
def test_without_the_extra_it_names_the_extra(missing: str, run: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; {run}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 2
    assert "pip install 'aiodq[cli]'" in one_line(done.stderr)


def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    code = (
        "import sys; sys.modules['aiodq.cli.exits'] = None; from aiodq.cli import main; sys.exit(main(['stat', '.']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert "ModuleNotFoundError" in done.stderr


def test_importing_it_imports_no_extra() -> None:
    code = "import sys, aiodq.cli; sys.exit(bool({'cyclopts', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


def test_the_console_script_takes_the_process_s_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["aiodq", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith(package.__version__)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bogus"], "bogus"),
        (["put"], "STORE"),
        (["put", "STORE"], "TOPIC"),
        (["put", "STORE", "t", "nothing-there"], "nothing-there"),
        (["put", "STORE", "t", "."], "directory"),
        (["put", "STORE", "t", "--bogus"], "--bogus"),
        (["put", "STORE", "t", "--lines", "--jsonl"], "--lines"),
        (["put", "STORE", "no/name"], "no/name"),
        (["put", "STORE", "t#ephemeral", "OTHER/file"], "would be kept only in the memory of this command"),
        (["put", "", "t"], "path is empty"),
        (["put", "~/s", "t", "OTHER/file"], "which only a shell replaces"),
        (["put", "OTHER/none/s", "t", "OTHER/file"], "OTHER/none, in which to make the store"),
        (["serve", "OTHER/none/s", "--create"], "OTHER/none, in which to make the store"),
        (["put", "STORE", ".."], "'..'"),
        (["put", "OTHER", "t", "OTHER/file"], "OTHER"),
        (["get", "STORE", "t", "-n", "-1"], "-1"),
        (["get", "STORE", "t", "-n", "many"], "many"),
        (["get", "STORE", "t", "-n", "1.5"], "'1.5' is no whole number"),
        (["tail", "STORE", "t", "-n", "1e1"], "'1e1' is no whole number"),
        (["peek", "STORE", "t", "-n", "nan"], "'nan' is no whole number"),
        (["requeue-dead", "STORE", "t", "-n", "0.5"], "'0.5' is no whole number"),
        (["bench", ".", "--size", "0.5"], "'0.5' is no whole number"),
        (["get", "STORE", "t", "--channel", "a/b"], "a/b"),
        (["get", "STORE", "other"], "other"),
        (["get", "STORE", "t", "surplus", "more"], "more arguments than it takes: surplus more."),
        (["get", "nothing-there", "t"], "nothing-there"),
        (["tail", "STORE", "other"], "other"),
        (["get", "", "t"], "path is empty"),
        (["get", "STORE", "t#ephemeral"], "kept in the memory of a store's owner"),
        (["channels", "STORE", "t", "--create", "c#ephemeral"], "would be kept only in the memory of this command"),
        (["tail", "STORE", "no/name"], "no/name"),
        (["tail", "nothing-there", "t"], "nothing-there"),
        (["stat", "nothing-there"], "nothing-there"),
        (["stat", "OTHER"], "OTHER"),
        (["stat", "STORE", "--json", "--watch"], "--watch"),
        (["verify", "nothing-there"], "nothing-there"),
        (["verify", "OTHER"], "OTHER"),
        (["verify", ""], "path is empty"),
        (["serve", ""], "path is empty"),
        (["who", ""], "path is empty"),
        (["bench", ""], "path is empty"),
        (["dump", ""], "path is empty"),
        (["repair", "nothing-there"], "nothing-there"),
        (["dump", "nothing-there"], "nothing-there"),
        (["dump", "STORE"], "directory"),
        (["dump", "OTHER/file"], "no segment"),
        (["demo", "--limit", "0"], "0"),
        (["demo", "--producers", "0"], "0"),
        (["demo", "--limit", "1.5"], "'1.5' is no whole number"),
        (["demo", "--store", ""], "path is empty"),
        (["demo", "--consumers", "none"], "none"),
        (["demo", "--store", "STORE"], "there already"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    fill(tmp_path / "STORE", "t", [b"one"])
    (tmp_path / "OTHER").mkdir()
    (tmp_path / "OTHER" / "file").write_bytes(b"somebody else's")
    before = sorted(tmp_path.rglob("*"))
    code = main([str(tmp_path / each) if each.isupper() or each.startswith("OTHER") else each for each in arguments])
    shown = capsys.readouterr()
    assert code == 2
    assert said in one_line(shown.err)
    assert shown.out == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["put s t", "serve s --create", "verify s", "repair s", "backup STORE b"])
def test_a_relative_path_in_a_deleted_directory_is_misuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    fill(tmp_path / "STORE", "t", [b"one"])
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()
    done = aiodq(*(tmp_path / each if each.isupper() else each for each in command.split()))
    assert done.code == 2
    assert "the working directory was deleted: write an absolute one" in done.err


@pytest.mark.drawn("arguments")
@pytest.mark.parametrize("arguments", [["put", "--help"], ["--version"]])
def test_help_that_nobody_reads_to_its_end_is_no_failure(arguments: list[str]) -> None:
    assert read_by_nobody(*arguments) == (0, b"")


def test_an_ephemeral_topic_makes_no_store(tmp_path: Path) -> None:
    done = aiodq("put", tmp_path / "none", "t#ephemeral", stdin=b"a\n")
    assert done.code == 2
    assert not (tmp_path / "none").exists()


def test_a_store_that_is_open_elsewhere_is_refused_with_the_owner_s_pid(tmp_path: Path) -> None:
    with Owner(tmp_path / "store", "t") as owner:
        owner.does(b"put one")
        for command, *rest in (["put", "t"], ["get", "t"], ["repair"]):
            done = aiodq(command, tmp_path / "store", *rest, stdin=b"x\n")
            assert done.code == 2, command
            assert f"process {owner.process.pid}" in one_line(done.err), command


@pytest.mark.drawn("arguments")
@pytest.mark.parametrize("arguments", [["stat", "STORE", "--json"], ["put", "STORE", "t", "STORE/LOCK"], ["--help"]])
def test_a_full_disk_behind_standard_output_is_told(tmp_path: Path, arguments: list[str]) -> None:
    store = tmp_path / "store"
    fill(store, "t", [b"one"])
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*PROGRAM, *(each.replace("STORE", str(store)) for each in arguments)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in one_line(done.stderr)


def test_a_full_disk_behind_standard_error_changes_no_exit_code(tmp_path: Path) -> None:
    """As where a job's log is on it."""
    with open("/dev/full", "wb") as full:
        for arguments in (["nope"], ["stat", str(tmp_path / "none")]):
            done = subprocess.run(
                [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=full, env=environment(), check=False
            )
            assert (done.returncode, done.stdout) == (2, b"")


def test_a_closed_standard_output_is_refused_before_its_number_is_given_to_a_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, "t", [b"one"])
    command = ["sh", "-c", '"$@" >&-', "sh", *PROGRAM, "get", str(store), "t"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 2
    assert "closed" in one_line(done.stderr)
    assert ok("get", store, "t").lines == [b"one"]


@pytest.mark.parametrize("arguments", [["tail"], ["tail", "--json"], ["stat", "--json"], ["stat"]], ids=" ".join)
def test_all_that_is_printed_arrives_though_nothing_is_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    fill(tmp_path, "t", [b"%d" % number for number in range(100)])
    named = [*arguments, str(tmp_path), *(["t", "-n", "100"] if arguments[0] == "tail" else [])]
    short = Short(7)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(short, "utf-8", write_through=True))  # type: ignore[type-var]  # typeshed wants a name and a read() of it, and it is only written to
    assert main(named) == 0
    assert short.taken == aiodq(*named).out


def test_what_takes_nothing_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, "t", [b"one"])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Short(None), "utf-8", write_through=True))  # type: ignore[type-var]  # typeshed wants a name and a read() of it, and it is only written to
    monkeypatch.setattr("aiodq.cli.app.forget", lambda _: None)
    assert main(["tail", str(tmp_path), "t"]) == 1
    assert "takes no more" in one_line(capsys.readouterr().err)
