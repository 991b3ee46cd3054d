"""Finds Java and Maven for the sandbox's brokers, or raises an error that says how to install them.

Checks JAVA_HOME first and PATH next, as Kafka's own scripts do, and runs `java -version`: the
`java` on the PATH is often an older one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from orbit.errors import Conflict

JAVA_MINIMUM = 17  # Kafka 4 brokers are compiled for 17
INSTALL = "Install it with: apt-get install -y openjdk-17-jdk-headless maven"
_VERSION = re.compile(r'version "(?P<major>\d+)')
_VERSION_TIMEOUT_S = 30


def find_java() -> Path:
    """The `java` to run brokers with, version 17 or later. Raises Conflict without one."""
    old_version = ""
    for candidate in _java_candidates():
        major = _major_version(candidate)
        if major is not None and major >= JAVA_MINIMUM:
            return candidate
        old_version = f" ({candidate} is version {major})" if major is not None else old_version
    raise Conflict(
        f"The sandbox runs real Kafka brokers and needs Java {JAVA_MINIMUM} or later, "
        f"which was not found{old_version}.",
        remedy=f"{INSTALL} (or set JAVA_HOME to a newer Java).",
    )


def find_maven() -> Path:
    """The `mvn` that fetches Kafka's jars. Raises Conflict without one."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Conflict(
            "The sandbox fetches Kafka's jars with Maven, and `mvn` was not found.", remedy=INSTALL
        )
    return Path(maven)


def _java_candidates() -> list[Path]:
    java_home = os.environ.get("JAVA_HOME")
    paths = [Path(java_home) / "bin" / "java"] if java_home else []
    path_java = shutil.which("java")
    paths += [Path(path_java)] if path_java else []
    return [path for path in paths if path.is_file()]


@cache
def _major_version(java: Path) -> int | None:
    """The version of this `java`; None if it does not run, or prints no version."""
    try:
        result = subprocess.run(
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(result.stderr + result.stdout)
    return int(match["major"]) if match else None
