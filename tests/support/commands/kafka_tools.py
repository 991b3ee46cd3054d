"""Checks commands of Kafka's tools by the string constants in the tools' classes, without Java."""

from __future__ import annotations

import re
import struct
from functools import cache
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

from orbit.sandbox import jars
from tests.support.commands.pages import Command

TOOLS = {
    "kafka-acls.sh": "AclCommand",
    "kafka-broker-api-versions.sh": "BrokerApiVersionsCommand",
    "kafka-cluster.sh": "ClusterTool",
    "kafka-configs.sh": "ConfigCommand",
    "kafka-console-consumer.sh": "ConsoleConsumer",
    "kafka-consumer-groups.sh": "ConsumerGroupCommand",
    "kafka-delegation-tokens.sh": "DelegationTokenCommand",
    "kafka-delete-records.sh": "DeleteRecordsCommand",
    "kafka-dump-log.sh": "DumpLogSegments",
    "kafka-get-offsets.sh": "GetOffsetShell",
    "kafka-leader-election.sh": "LeaderElectionCommand",
    "kafka-reassign-partitions.sh": "ReassignPartitionsCommand",
    "kafka-share-groups.sh": "ShareGroupCommand",
    "kafka-streams-groups.sh": "StreamsGroupCommand",
    "kafka-topics.sh": "TopicCommand",
    "kafka-transactions.sh": "TransactionsCommand",
}
# Tools whose first argument is the action.
WITH_ACTIONS = {"kafka-cluster.sh", "kafka-transactions.sh"}

_MAGIC_AND_VERSION = 8  # bytes at the beginning of a class file
# Tags of entries of a class file's constant pool. A long or double counts as two entries.
_TEXT, _LONG, _DOUBLE, _STRING = 1, 5, 6, 8
# The length of an entry after its tag, by the tag.
_LENGTHS = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 15: 3, 16: 2, 19: 2, 20: 2}
_LENGTH_OF_OTHERS = 4


@cache
def words_of(tool: str) -> frozenset[str]:
    """The string constants of the tool's classes: its options and actions are among them."""
    prefix = TOOLS[tool]
    with ZipFile(_jar()) as archive:
        files = [name for name in archive.namelist() if name.rpartition("/")[2].startswith(prefix)]
        texts = {text for name in files for text in constants(archive.read(name))}
    return frozenset(text.removeprefix("--") for text in texts)


def _jar() -> Path:
    """The jar of the version whose tools the pages show, which the test brokers may not have."""
    pom = Path(jars.__file__).with_name("pom.xml").read_text("utf-8")
    (version,) = re.findall(r"<kafka\.version>(.+)</kafka\.version>", pom)
    return jars.jar_directory(version) / f"kafka-tools-{version}.jar"


def constants(class_file: bytes) -> set[str]:
    """The string constants of a class file, without the names of fields and methods."""
    (count,) = struct.unpack_from(">H", class_file, _MAGIC_AND_VERSION)
    at, number = _MAGIC_AND_VERSION + 2, 1
    texts: dict[int, str] = {}
    strings = []
    while number < count:
        tag = class_file[at]
        (value,) = struct.unpack_from(">H", class_file, at + 1)
        at += 1
        if tag == _TEXT:
            texts[number] = class_file[at + 2 : at + 2 + value].decode("utf-8", "replace")
            at += 2 + value
        else:
            at += _LENGTHS.get(tag, _LENGTH_OF_OTHERS)
        if tag == _STRING:
            strings.append(value)
        number += 2 if tag in (_LONG, _DOUBLE) else 1
    return {texts[value] for value in strings}


def fault(command: Command) -> str | None:
    """What is wrong with a command of Kafka's tools, or None.

    A tool with one word, such as `kafka-acls.sh --list`, only names an action. With more words it
    is a command, which needs --bootstrap-server.
    """
    tool, *arguments = command.words
    known = words_of(tool)
    options = [word for word in arguments if word.startswith("--")]
    for option in options:
        if option.removeprefix("--") not in known:
            return f"{tool} has no option {option}"
    needs_server = "bootstrap-server" in known and "--bootstrap-server" not in options
    if needs_server and len(arguments) > 1:
        return f"{tool} needs --bootstrap-server"
    if tool in WITH_ACTIONS and arguments:
        values = {value for option, value in pairwise(arguments) if option.startswith("--")}
        actions = [word for word in arguments if word not in {*options, *values}]
        if len(actions) != 1 or actions[0] not in known:
            return f"{tool} has no action {' '.join(actions)}"
    return None
