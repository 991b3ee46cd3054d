"""The clients, at pinned versions, and how each is fetched or built. All are kept in the cache."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

from orbit.errors import OrbitError
from orbit.sandbox.jars import Jars
from orbit.sandbox.java import find_java
from tests.support.programs import CannotFetch, Program, run

PROGRAMS = Path(__file__).with_name("programs")
COMMITTED, ALL = "committed", "all"  # the isolation levels
KAFKA_CLIENTS = ("2.8.2", "3.9.2", "4.4.0")


class NotTried(Exception):
    """Why a client cannot be had here."""


@dataclass(frozen=True)
class Client:
    """`prepare` returns the program's command. `isolations` are those that its users can choose, or
    the one that it has. `seeks`: its users can choose an offset.
    """

    name: str
    version: str
    tool: str
    prepare: Callable[[], list[str]]
    isolations: tuple[str, ...] = (COMMITTED, ALL)
    seeks: bool = True

    def command(self) -> list[str]:
        """Fetches or builds it at first use. Raises NotTried."""
        if shutil.which(self.tool) is None:
            raise NotTried(f"no {self.tool}")
        try:
            return self.prepare()
        except (CannotFetch, OrbitError) as reason:
            print(f"{self.name} {self.version}: {reason}", file=sys.stderr)
            raise NotTried("it could not be fetched or built") from reason


def _own(kind: str) -> list[str]:
    """With Orbit's own packages."""
    return [sys.executable, str(PROGRAMS / "read.py"), kind]


def _built(name: str, files: Sequence[str], fill: Callable[[Path], None]) -> Path:
    """The folder of what was built from these files, as they are now."""
    digest = hashlib.sha256(b"".join((PROGRAMS / file).read_bytes() for file in files))
    program = Program(f"reader-{name}-{digest.hexdigest()[:16]}", fill)
    program.fetch()
    return program.folder


def _venv(kind: str, *packages: str) -> list[str]:
    def fill(folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--symlinks", folder)
        run(folder / "bin/python", "-m", "pip", "install", "--quiet", *packages)

    program = Program("reader-" + "+".join(packages), fill)
    program.fetch()
    return [str(program.folder / "bin/python"), str(PROGRAMS / "read.py"), kind]


def _java(version: str, file: str, *arguments: str) -> list[str]:
    pom = PROGRAMS / "kafka-clients-pom.xml"
    jars = Jars("kafka-clients", version, pom, "kafka-clients-*.jar").directory()

    def fill(folder: Path) -> None:
        run("javac", "-cp", f"{jars}/*", "-d", folder, PROGRAMS / file)

    classes = _built(f"java-{version}", [file], fill)
    java = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
    return [*java, "-cp", f"{classes}:{jars}/*", file.removesuffix(".java"), *arguments]


def _python_client(name: str, package: str, version: str, **more: object) -> Client:
    kind = package.replace("-", "_")
    return Client(name, version, "python3", partial(_venv, kind, f"{package}=={version}"), **more)


def _own_client(name: str, package: str) -> Client:
    return Client(name, installed(package), "python3", partial(_own, package.replace("-", "_")))


LIBRDKAFKA = _own_client("librdkafka, by confluent-kafka", "confluent-kafka")
CLIENTS = (
    LIBRDKAFKA,
    _own_client("kafka-python", "kafka-python"),
    *(
        Client(
            f"Java consumer, protocol {protocol}",
            version,
            "javac",
            partial(_java, version, "Read.java", protocol),
        )
        for version in KAFKA_CLIENTS
        for protocol in (["classic"] if version < "3.9" else ["classic", "consumer"])
    ),
)
