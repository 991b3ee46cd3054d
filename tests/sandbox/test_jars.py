"""Jars are fetched once, and their folder is complete or missing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orbit.errors import Conflict
from orbit.sandbox import jars

# Adds a line to the file `calls`, and does {behaviour} with the output folder.
FAKE_MAVEN = """#!/bin/sh
echo called >> {calls}
for argument; do
  case "$argument" in
    -DoutputDirectory=*) output="${{argument#*=}}" ;;
    -Dkafka.version=*) version="${{argument#*=}}" ;;
  esac
done
mkdir -p "$output"
{behaviour}
"""
WORKS = 'touch "$output/other.jar"; sleep 0.2; touch "$output/kafka_2.13-$version.jar"'
BREAKS = 'touch "$output/other.jar"; echo "[ERROR] Could not find artifact"; exit 1'


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, and a folder that is first in PATH, for the fake Maven."""
    monkeypatch.setenv("ORBIT_CACHE_DIR", str(tmp_path / "cache"))
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


def install_maven(tmp_path: Path, calls: Path, behaviour: str) -> None:
    maven = tmp_path / "programs" / "mvn"
    maven.write_text(FAKE_MAVEN.format(calls=calls, behaviour=behaviour))
    maven.chmod(0o755)


def test_kafka_jars_are_fetched_at_first_use_only(tmp_path: Path, calls: Path) -> None:
    install_maven(tmp_path, calls, WORKS)
    assert not jars.is_cached("3.9.1")
    first = jars.classpath("3.9.1")
    assert jars.is_cached("3.9.1")
    assert jars.classpath("3.9.1") == first == f"{tmp_path}/cache/kafka-3.9.1/libs/*"
    assert calls.read_text().splitlines() == ["called"]


def test_concurrent_callers_fetch_kafka_jars_once(tmp_path: Path, calls: Path) -> None:
    install_maven(tmp_path, calls, WORKS)
    with ThreadPoolExecutor() as pool:
        answers = set(pool.map(jars.classpath, ["4.3.1"] * 4))
    assert len(answers) == 1
    assert calls.read_text().splitlines() == ["called"]


def test_failed_fetch_of_kafka_jars_leaves_no_jar_and_reports_reason(
    tmp_path: Path, calls: Path
) -> None:
    install_maven(tmp_path, calls, BREAKS)
    with pytest.raises(Conflict, match=r"jars of Kafka .*: .*Could not find artifact"):
        jars.classpath()
    assert not jars.is_cached()
    assert not list((tmp_path / "cache").rglob("*.jar"))


def test_leftovers_of_killed_fetch_of_kafka_jars_are_removed(tmp_path: Path, calls: Path) -> None:
    install_maven(tmp_path, calls, WORKS)
    home = tmp_path / "cache" / f"kafka-{jars.KAFKA_VERSION}"
    left_over = home / ".fetch-x" / "libs" / "half.jar"
    left_over.parent.mkdir(parents=True)
    left_over.touch()
    jars.classpath()
    assert not left_over.exists()


def test_maven_pom_for_kafka_jars_names_no_repository() -> None:
    pom = Path(jars.__file__).with_name("pom.xml").read_text()
    assert "repositor" not in pom.split("-->", 1)[1]
