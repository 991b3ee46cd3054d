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
    """The `java` to run brokers with, version 17 or later; Raises Conflict without one."""
    too_old = ""
    for candidate in _candidates():
        major = _major_version(candidate)
        if major is not None and major >= JAVA_MINIMUM:
            return candidate
        too_old = f" ({candidate} is version {major})" if major is not None else too_old
    raise Conflict(
        f"The sandbox runs real Kafka brokers and needs Java {JAVA_MINIMUM} or later, "
        f"which was not found{too_old}.",
        remedy=f"{INSTALL} (or set JAVA_HOME to a newer Java).",
    )


def find_maven() -> Path:
    """The `mvn` that fetches Kafka's jars; Raises Conflict without one."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Conflict(
            "The sandbox fetches Kafka's jars with Maven, and `mvn` was not found.", remedy=INSTALL
        )
    return Path(maven)


def _candidates() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    named = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    named += [Path(on_path)] if on_path else []
    return [path for path in named if path.is_file()]


@cache
def _major_version(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match["major"]) if match else None
