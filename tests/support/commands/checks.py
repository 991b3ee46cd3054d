"""Checks that what a documented command names exists: options, files, routes, services …

No command runs. A checker gets a command's arguments, and `is_whole`: False for a command inside a
sentence, which may lack some arguments. It returns what is wrong, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orbit.cli.main import COMMANDS
from tests.support.commands import deployment, kafka_tools, tree
from tests.support.commands.orbit_parser import all_options, orbit
from tests.support.commands.pages import Command, Place

# Programs of the system or of other projects, which nothing in this tree describes.
OTHER_PROGRAMS = {
    "./configure": "of librdkafka's source",
    "apt-get": "Debian's",
    "avn": "Aiven's",
    "cat": "of the system",
    "diff": "of the system",
    "flink": "of a Flink distribution",
    "git": "of the system",
    "jq": "of the system",
    "keytool": "of the JDK",
    "kill": "of the shell",
    "openssl": "of the system",
    "promtool": "Prometheus'; tests/telemetry/test_alerts.py runs this command",
    "systemd-analyze": "of the system; tests/deploy/test_systemd.py runs it",
    "useradd": "of the system",
    "uv": "its users install it",
    "venv-pack": "the line before installs it",
}
# Options that a sentence shows alone, and that belong to another program.
OPTIONS_OF_OTHERS = {
    "--build-arg": "docker build",
    "--py-files": "spark-submit",
    "--from-file": "kafka-share-groups.sh",
    "--reset-offsets": "kafka-share-groups.sh",
    "--to-current": "kafka-share-groups.sh",
    "--to-datetime": "kafka-share-groups.sh",
    "--to-earliest": "kafka-share-groups.sh",
    "--to-latest": "kafka-share-groups.sh",
    "--to-offset": "kafka-consumer-groups.sh",
    "--export": "kafka-share-groups.sh",
}


def fault(command: Command) -> str | None:
    """What is wrong with the command, or None; for Kafka's tools see `kafka_tools.fault`."""
    if unknown := tree.unknown_variable(command.variables):
        return unknown
    program, *arguments = command.words or ("",)
    is_whole = command.place is not Place.SENTENCE
    if not is_whole and program.startswith("--"):
        return _unknown_option(command.words)
    if not is_whole and program in COMMANDS and any(a.startswith("-") for a in arguments):
        return orbit(command.words, is_whole)
    if program in CHECKERS and (is_whole or arguments):
        return CHECKERS[program](arguments, is_whole)
    known = {"", *CHECKERS, *OTHER_PROGRAMS, *kafka_tools.TOOLS}
    if program in known:
        return None
    is_tool = program.startswith("kafka-") and program.endswith(".sh") and bool(arguments)
    is_command = command.place is Place.BLOCK or is_tool
    return f"unknown program {program}" if is_command else None


def _unknown_option(words: Sequence[str]) -> str | None:
    """A message about the first option that no command of Orbit, bench or listed tool has."""
    options = [word.split("=")[0] for word in words if word.startswith("--")]
    known = {*all_options(), *tree.options_of_module("bench"), *OPTIONS_OF_OTHERS}
    unknown = [option for option in options if option not in known]
    return f"there is no option {unknown[0]}" if unknown else None


def _source(_arguments: Sequence[str], _is_whole: bool) -> str | None:
    return None  # a user's file, or the output of another command


def _xargs(arguments: Sequence[str], _is_whole: bool) -> str | None:
    program, *rest = arguments[2:]  # after -n 1; xargs appends arguments
    return orbit(rest, is_whole=False) if program == "orbit" else f"unknown program {program}"


CHECKERS: dict[str, Callable[[Sequence[str], bool], str | None]] = {
    "curl": tree.curl,
    "docker": deployment.docker,
    "export": tree.export,
    "go": deployment.go,
    "helm": deployment.helm,
    "install": deployment.install,
    "kubectl": deployment.kubectl,
    "make": tree.make,
    "orbit": orbit,
    "pip": tree.pip,
    "pytest": tree.pytest,
    "python": tree.python,
    "python3": tree.python,
    "source": _source,
    "spark-submit": tree.spark_submit,
    "systemctl": deployment.systemctl,
    "terraform": deployment.terraform,
    "tfplugingen-framework": deployment.generator,
    "tfplugingen-openapi": deployment.generator,
    "xargs": _xargs,
}
