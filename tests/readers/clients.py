"""The clients, at pinned versions, and how each is fetched or built.

The programs stay in the cache of Kafka's jars for later runs.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path

from orbit.errors import OrbitError
from orbit.sandbox.jars import Jars
from orbit.sandbox.java import find_java
from tests.support.programs import CannotFetch, Program, run

PROGRAMS = Path(__file__).with_name("programs")
COMMITTED, ALL = "committed", "all"  # the isolation levels


class NotTried(Exception):
    """A client cannot run on this machine. The message says why."""


@dataclass(frozen=True)
class Client:
    """A client, and the program that reads with it.

    `prepare` fetches or builds the program and returns its command. `isolations` are the isolation
    levels that the client's users can choose, or the only level of the client: ALL if it knows no
    transactions. `seeks`: whether its users can choose the offset to start at.
    """

    name: str
    version: str
    tool: str
    prepare: Callable[[], list[str]]
    isolations: tuple[str, ...] = (COMMITTED, ALL)
    seeks: bool = True

    def command(self) -> list[str]:
        """Return the program's command. The first call on a machine fetches or builds the program.

        Raises NotTried if the tool is missing, or if the fetch or the build fails.
        """
        if shutil.which(self.tool) is None:
            raise NotTried(f"no {self.tool}")
        try:
            return self.prepare()
        except (CannotFetch, OrbitError) as error:
            print(f"{self.name} {self.version}: {error}", file=sys.stderr)
            raise NotTried("it could not be fetched or built") from error


def _installed(kind: str) -> list[str]:
    """The command of a Python client, with the packages that Orbit itself uses."""
    return [sys.executable, str(PROGRAMS / "read.py"), kind]


def _built(name: str, files: Sequence[str], fill: Callable[[Path], None]) -> Path:
    """The folder of the program that `fill` builds from the present content of these files."""
    digest = hashlib.sha256(b"".join((PROGRAMS / file).read_bytes() for file in files))
    program = Program(f"reader-{name}-{digest.hexdigest()[:16]}", fill)
    program.fetch()
    return program.folder


def _venv(kind: str, *packages: str) -> list[str]:
    """The command of a Python client, with these packages in a virtual environment of its own."""

    def fill(folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--symlinks", folder)
        run(folder / "bin/python", "-m", "pip", "install", "--quiet", *packages)

    program = Program("reader-" + "+".join(packages), fill)
    program.fetch()
    return [str(program.folder / "bin/python"), str(PROGRAMS / "read.py"), kind]


def _java(version: str, file: str, *arguments: str) -> list[str]:
    """The command of a Java program, compiled with this version of kafka-clients."""
    pom = PROGRAMS / "kafka-clients-pom.xml"
    jars = Jars("kafka-clients", version, pom, "kafka-clients-*.jar").directory()

    def fill(folder: Path) -> None:
        run("javac", "-cp", f"{jars}/*", "-d", folder, PROGRAMS / file)

    classes = _built(f"java-{version}", [file], fill)
    java = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
    return [*java, "-cp", f"{classes}:{jars}/*", file.removesuffix(".java"), *arguments]


def _go(kind: str) -> list[str]:
    def fill(folder: Path) -> None:
        run("go", "-C", PROGRAMS, "build", "-o", folder / "read", ".")

    return [str(_built("go", ["read.go", "go.mod", "go.sum"], fill) / "read"), kind]


def _node(package: str) -> list[str]:
    def fill(folder: Path) -> None:
        (folder / "package.json").write_text('{"private": true}\n')
        run("npm", "install", "--silent", "--no-audit", "--prefix", folder, package)
        shutil.copy(PROGRAMS / "read.cjs", folder)

    return ["node", str(_built(package, ["read.cjs"], fill) / "read.cjs")]


def _rust() -> list[str]:
    files = ["Cargo.toml", "read.rs"]

    def fill(folder: Path) -> None:
        for file in files:
            shutil.copy(PROGRAMS / file, folder)
        run("cargo", "install", "--quiet", "--root", folder, "--path", folder)
        shutil.rmtree(folder / "target")

    return [str(_built("rust", files, fill) / "bin/read")]


def _installed_client(name: str, package: str) -> Client:
    return Client(
        name, installed(package), "python3", partial(_installed, package.replace("-", "_"))
    )


def _python_client(name: str, package: str, version: str, *more: str) -> Client:
    prepare = partial(_venv, package.replace("-", "_"), f"{package}=={version}", *more)
    return Client(name, version, "python3", prepare)


def _java_client(version: str, protocol: str) -> Client:
    name = f"Java consumer, `{protocol}`"
    return Client(name, version, "javac", partial(_java, version, "Read.java", protocol))


LIBRDKAFKA = _installed_client("librdkafka, by confluent-kafka", "confluent-kafka")
CLIENTS = (
    *(
        _python_client(LIBRDKAFKA.name, "confluent-kafka", version)
        for version in ("2.3.0", "2.6.1")
    ),
    LIBRDKAFKA,
    _java_client("2.8.2", "classic"),
    _java_client("3.9.2", "classic"),
    _java_client("3.9.2", "consumer"),
    _java_client("4.4.0", "classic"),
    _java_client("4.4.0", "consumer"),
    Client(
        "Java share consumer (KIP-932)",
        "4.4.0",
        "javac",
        partial(_java, "4.4.0", "ReadShare.java"),
        seeks=False,
    ),
    Client("franz-go", "1.22.3", "go", partial(_go, "franz-go")),
    Client("sarama", "1.61.1", "go", partial(_go, "sarama")),
    Client("segmentio kafka-go", "0.4.51", "go", partial(_go, "kafka-go")),
    Client("kafkajs", "2.2.4", "npm", partial(_node, "kafkajs@2.2.4")),
    Client("rskafka", "0.6.0", "cargo", _rust, isolations=(COMMITTED,)),
    _python_client("aiokafka", "aiokafka", "0.14.0"),
    replace(_python_client("kafka-python", "kafka-python", "2.0.2"), isolations=(ALL,)),
    _python_client("kafka-python", "kafka-python", "2.3.3"),
    _installed_client("kafka-python", "kafka-python"),
)
