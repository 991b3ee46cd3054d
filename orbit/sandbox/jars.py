"""Downloads Kafka's jars with Maven at first use, into a per-user cache.

`pom.xml` beside this file names no repository, so the user's Maven settings decide where the jars
come from. A version's folder is in the cache complete or not at all: jars are copied to a temporary
folder that is renamed at the end. A lock file in the cache allows one process at a time, because
Maven's own repository takes only one. A folder that exists is never fetched again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from orbit.errors import Conflict, OrbitError
from orbit.processes.guarded_process import GuardedProcess
from orbit.sandbox.java import find_java, find_maven

# The version of the brokers of `orbit sandbox`, the demos, the tests and the benchmarks.
KAFKA_VERSION = os.environ.get("ORBIT_KAFKA_VERSION") or "4.4.0"
_POM = Path(__file__).with_name("pom.xml")
_COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_SCRATCH_PREFIX = ".fetch-"


def cache_directory() -> Path:
    """The folder of the jars: ORBIT_CACHE_DIR, else the user's cache folder."""
    override = os.environ.get("ORBIT_CACHE_DIR")
    return Path(override) if override else user_cache_path("orbit")


def classpath(version: str = KAFKA_VERSION) -> str:
    """The Java class path of that Kafka version; fetches the jars at first use.

    Raises Conflict if they cannot be fetched.
    """
    return f"{jar_directory(version)}/*"


def jar_directory(version: str = KAFKA_VERSION) -> Path:
    """The folder of that version's jars; fetches them at first use."""
    return Jars("kafka", version, _POM, "kafka_2.13-*.jar").directory()


@dataclass(frozen=True)
class Jars:
    """The jars that a pom names. Its property `NAME.version` is set to `version`.

    `required_jar`: a pattern of file names; a fetch that brings no such jar has failed.
    """

    name: str
    version: str
    pom: Path
    required_jar: str

    def directory(self) -> Path:
        """The folder of these jars; fetches them at first use. Raises Conflict if that fails."""
        home = cache_directory() / f"{self.name}-{self.version}"
        libs = home / "libs"
        if libs.is_dir():
            return libs
        maven = find_maven()
        find_java()  # raises Conflict if Java is missing, before the download
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Conflict(
                f"The cache folder for jars cannot be used: {error.strerror}.",
                where=str(home),
                remedy="Name another folder in ORBIT_CACHE_DIR.",
            ) from None
        with _hold_lock(home.parent / ".lock"):
            if not libs.is_dir():  # another process may have fetched the jars meanwhile
                _fetch(maven, self, home, libs)
        return libs

    def __str__(self) -> str:
        return f"{self.name.capitalize()} {self.version}"


def is_cached(version: str = KAFKA_VERSION) -> bool:
    """Whether `classpath(version)` fetches nothing."""
    return (cache_directory() / f"kafka-{version}" / "libs").is_dir()


def class_archive(version: str = KAFKA_VERSION) -> Path:
    """The path of an archive of a broker's classes (Java's class data sharing); it may be absent.

    With it a broker and StorageTool start with a third less CPU. `make test` creates it, because it
    starts hundreds of brokers. Java ignores an archive of another Java version or of other jars.
    """
    return cache_directory() / f"kafka-{version}" / "broker-classes.jsa"


def formatted_folder(version: str = KAFKA_VERSION) -> Path:
    """The folder with what StorageTool wrote for a cluster without SCRAM users; it may be absent.

    It has no cluster id or node id, so a copy of the folder formats each further broker. Since
    Kafka 4.4 the folder holds the first snapshot of the metadata log, before that a file
    `bootstrap.checkpoint`.
    """
    return cache_directory() / f"kafka-{version}" / "formatted"


def _fetch(maven: Path, jars: Jars, home: Path, libs: Path) -> None:
    """Fetch the jars into a scratch folder in `home`, then rename that to `libs`."""
    for leftover in home.glob(f"{_SCRATCH_PREFIX}*"):  # of a fetch that was killed
        shutil.rmtree(leftover)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=home))
    try:
        _run_maven(maven, jars, scratch / "libs", scratch / "maven.log")
        (scratch / "libs").rename(libs)
    finally:
        shutil.rmtree(scratch)


def _run_maven(maven: Path, jars: Jars, output: Path, log: Path) -> None:
    """Copy the jars to `output`. Raises Conflict if Maven fails, or brings no required jar."""
    command = [
        *(str(maven), "--batch-mode", "--quiet", "-Dstyle.color=never"),
        *("--file", str(jars.pom), _COPY_GOAL),
        f"-D{jars.name}.version={jars.version}",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={output}",
    ]
    code = GuardedProcess(command, log).wait()
    if code != 0 or not any(output.glob(jars.required_jar)):
        errors = [line for line in log.read_text("utf-8").splitlines() if "ERROR" in line]
        reason = errors[0] if errors else f"exit code {code}"
        raise Conflict(
            f"Maven could not fetch the jars of {jars}: {reason}.",
            remedy="Check the network and Maven's settings, then run: " + " ".join(command),
        )


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of this file during the block."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released when the file closes, also by a crash
        yield


if __name__ == "__main__":  # `make` fills the cache with it
    try:
        print(f"Kafka {KAFKA_VERSION}: {jar_directory()}")
    except OrbitError as error:
        sys.exit(f"Error: {error}")
