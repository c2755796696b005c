"""The set-up: what a machine lacks is one sentence before any work, and the locks say all that is installed."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from jobs.errors import UsageError
from jobs.local import java
from jobs.local.ports import HOST, Ports
from jobs.settings import PROJECT


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, with no more in it than a shell needs; no Java, no Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname"):
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    for name in ("JAVA_HOME", "PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return programs


@pytest.fixture
def install() -> ModuleType:
    """bin/install.py as a module."""
    spec = importlib.util.spec_from_file_location("install", PROJECT / "bin" / "install.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(path: Path, *lines: str) -> Path:
    """A shell script in place of a real program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


def fake_java(path: Path, version: str) -> Path:
    """A Java that only tells its version, as the real ones do: on stderr."""
    return program(path, f"""echo 'openjdk version "{version}" 2025-01-01' >&2""")


def refused() -> str:
    """What `bin/setup` says when it refuses, which is one sentence."""
    done = subprocess.run(
        [PROJECT / "bin" / "setup"], env=dict(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 64, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("setup: ")
    return done.stderr


def with_python(machine: Path) -> None:
    (machine / "python3.11").symlink_to(sys.executable)


def test_no_python(machine: Path) -> None:  # noqa: ARG001
    assert "needs Python 3.11, and found no Python: install" in refused()


def test_another_python(machine: Path) -> None:
    program(machine / "python3", 'case "$2" in *print*) echo "Python 3.9";; *) exit 1;; esac')
    assert "needs Python 3.11, and found Python 3.9: install" in refused()


def test_no_java(machine: Path) -> None:
    with_python(machine)
    assert "no java on the PATH, and Kafka and Spark need one: install Java 17 or 21, or set JAVA_HOME" in refused()


def test_a_java_home_without_java(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_python(machine)
    fake_java(machine / "java", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "JAVA_HOME is /nowhere, which has no bin/java" in refused()


def test_another_java(machine: Path) -> None:
    with_python(machine)
    fake_java(machine / "java", "11.0.20")
    assert "is Java 11, and Spark and Kafka need 17 or 21: install" in refused()


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", "8"), ("25", "25"), ("18.0.2", "18")])
def test_java_home_comes_before_the_path(machine: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: str) -> None:
    fake_java(machine / "java", "21.0.2")
    home = machine / "home"
    fake_java(home / "bin" / "java", version)
    java.check()
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(UsageError, match=f"is Java {major},"):
        java.check()


def test_a_java_that_is_none(machine: Path) -> None:
    program(machine / "java", "echo 'Unable to locate a Java Runtime.' >&2", "exit 1")
    with pytest.raises(UsageError, match="doesn't tell its version"):
        java.check()


def test_a_full_disk(install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "VENV", tmp_path / "none")
    monkeypatch.setattr(install.shutil, "disk_usage", lambda _: SimpleNamespace(free=3.21e9))
    with pytest.raises(UsageError, match=r"has 3\.2 GB free, and the first installation needs 12"):
        install._check(services=False)


def test_a_python_that_cannot_make_environments(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"python3\.11-venv"):
        install._check(services=False)


def test_a_taken_port_before_the_first_installation(install: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "PROJECT", tmp_path)
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        monkeypatch.setattr(install, "Ports", lambda: Ports(kafka=port))
        with pytest.raises(UsageError, match=f"Port {port}, which the embedded kafka needs, is taken by .*process {os.getpid()}"):
            install._check(services=True)


def test_an_environment_that_was_moved_is_not_used(install: ModuleType, tmp_path: Path) -> None:
    home = tmp_path / "one"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    program(home / "bin" / "penstock").write_text(f"#!{home}/bin/python\n")
    assert install._belongs_here(home)
    home.rename(tmp_path / "two")
    assert not install._belongs_here(tmp_path / "two")
    assert not install._belongs_here(home)


@pytest.mark.parametrize("name", ["requirements.lock", "bootstrap.lock"])
def test_a_lock_has_hashes_and_names_no_place(name: str) -> None:
    text = (PROJECT / name).read_text()
    assert not re.search(r"://|--(index|extra|find|trusted)|file:|^[./]", text, flags=re.MULTILINE)
    requirements = [block for block in re.split(r"\n(?=\S)", text) if not block.startswith("#")]
    assert requirements
    assert all(re.match(r"[a-z0-9-]+==\S+ (;.*)?\\\n    --hash=sha256:", block) for block in requirements)


def test_every_target_sets_up_first_and_says_what_it_does() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert phony
    rules = dict(re.findall(r"^([a-z-]+):(.*)$", makefile, flags=re.MULTILINE))
    assert set(rules) == set(phony[1].split())
    told = subprocess.run(["make", "-s", "-C", PROJECT], capture_output=True, text=True, check=True).stdout
    for target, rest in rules.items():
        if target != "setup-services":
            assert f"make {target}" in told
        if target not in ("help", "setup", "setup-services", "clean"):
            assert rest.split("##")[0].strip() in ("setup", "setup-services"), target
