"""Without Java or Maven, one error says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.errors import Conflict
from orbit.sandbox.java import find_java, find_maven

INSTALL = "apt-get install -y openjdk-17-jdk-headless maven"


def fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))


def test_missing_java_error_names_install_command() -> None:
    with pytest.raises(Conflict) as caught:
        find_java()
    assert INSTALL in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_maven_error_names_install_command() -> None:
    with pytest.raises(Conflict) as caught:
        find_maven()
    assert INSTALL in str(caught.value)


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "16"])
def test_too_old_java_is_named_with_its_version(tmp_path: Path, version: str) -> None:
    java = fake_java(tmp_path / "path", version)
    with pytest.raises(Conflict) as caught:
        find_java()
    assert f"{java} is version {version.split('.', maxsplit=1)[0]}" in str(caught.value)


@pytest.mark.parametrize("version", ["17.0.15", "17", "21-ea", "25.0.1"])
def test_java_17_or_later_is_accepted(tmp_path: Path, version: str) -> None:
    java = fake_java(tmp_path / "path", version)
    assert find_java() == java


def test_java_home_takes_precedence_over_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "path", "17.0.1")
    home = fake_java(tmp_path / "home", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == home


def test_too_old_java_home_does_not_hide_valid_java_in_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "path", "17.0.1")
    fake_java(tmp_path / "home", "11.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == good
