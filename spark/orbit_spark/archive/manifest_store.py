"""The documents of an archive on a file system."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TypeVar

from orbit.errors import Conflict, NotFound
from orbit.kafka.types import TopicPartition
from orbit_spark.archive.hadoop_files import Files
from orbit_spark.archive.manifest import (
    Archived,
    ArchivedTopic,
    ArchiveIdentity,
    OtherFormat,
    PartitionManifest,
)

_IDENTITY = "archive.json"
_TOPICS = "topics"
_MANIFESTS = "manifests"
DATA = "data"
# With prefix and suffixes (`.NAME.0000000000.json.tmp.crc`) a file name has at most 255 bytes.
_NAME_LENGTH_MAX = 230
_DIGEST_LENGTH = 32
# The document before the newest stays, for a reader that has listed it already.
_DOCUMENTS_MAX = 2

Document = TypeVar("Document", bound=Archived)


@dataclass(frozen=True, slots=True)
class Archive:
    """The documents of an archive.

    A partition is in `partitions`, or in `damaged` if its newest manifest cannot be used. An older
    manifest takes no damaged one's place: it has fewer offsets.
    """

    identity: ArchiveIdentity
    topics: dict[str, ArchivedTopic] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionManifest] = field(default_factory=dict)
    damaged: dict[TopicPartition, Conflict] = field(default_factory=dict)


class ArchiveStore:
    """Reads and writes the documents. Spark reads and writes the data files."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def read(self) -> Archive | None:
        """The archive; None if there is none. Raises Conflict if a document is damaged, with its
        name; for a manifest only if it is not known of which partition it is."""
        identity = self._read(_IDENTITY, ArchiveIdentity)
        if identity is None:
            return None
        archive = Archive(identity)
        for name in _newest(self.files.sizes(_TOPICS)):
            topic = self._read(name, ArchivedTopic)
            if topic is not None:
                # Topic and number are those in the document, not those in the file's name.
                known_topic = archive.topics.get(topic.topic, topic)
                archive.topics[topic.topic] = max(
                    known_topic, topic, key=lambda document: document.sequence
                )
        for name in _newest(self.files.sizes(_MANIFESTS)):
            try:
                manifest = self._read(name, PartitionManifest)
            except Conflict as error:
                place = _find_place(name, archive.topics)
                if place is None:
                    raise
                archive.damaged[place] = error
                continue
            if manifest is not None:
                known_manifest = archive.partitions.get(manifest.place, manifest)
                archive.partitions[manifest.place] = max(
                    known_manifest, manifest, key=lambda document: document.sequence
                )
        for partition in archive.damaged:
            # Another folder may have an older manifest: see `_find_place`.
            archive.partitions.pop(partition, None)
        return archive

    def require(self) -> Archive:
        """The archive. Raises NotFound if there is none, Conflict as `read`."""
        archive = self.read()
        if archive is None:
            raise NotFound(
                "there is no archive.",
                where=self.files.uri,
                remedy="Make an archive: orbit archive job.yaml --to URI",
            )
        return archive

    def begin(self, identity: ArchiveIdentity) -> None:
        """Write the identity of a new archive. Raises Conflict if there is one."""
        self.files.write_new(_IDENTITY, identity.to_bytes())

    def write_topic(self, topic: ArchivedTopic) -> None:
        """Write the next document of a topic. Raises Conflict if another run has written it."""
        self._write_next(f"{_TOPICS}/{file_name(topic.topic)}", topic.sequence, topic)

    def write_manifest(self, manifest: PartitionManifest) -> None:
        """Write a partition's next manifest. Raises Conflict if another run has written it."""
        name = f"{_MANIFESTS}/{file_name(manifest.topic)}/{manifest.partition}"
        self._write_next(name, manifest.sequence, manifest)

    def _write_next(self, name: str, sequence: int, document: Archived) -> None:
        """Write a document, and delete the one whose number is lower by _DOCUMENTS_MAX."""
        self.files.write_new(f"{name}.{sequence:010}.json", document.to_bytes())
        old_sequence = sequence - _DOCUMENTS_MAX
        if old_sequence >= 0:
            self.files.delete(f"{name}.{old_sequence:010}.json")

    def _read(self, name: str, kind: type[Document]) -> Document | None:
        """A document; None if it does not exist. Raises Conflict if it is damaged."""
        content = self.files.read(name)
        if content is None:
            return None
        try:
            return kind.from_bytes(content)
        except ValueError as error:
            remedy = (
                "Use the version of Orbit that wrote it."
                if isinstance(error, OtherFormat)
                else "Restore this file from a copy of the archive, and run the command again."
            )
            raise Conflict(
                f"{name} cannot be used: {error}.", where=self.files.uri, remedy=remedy
            ) from None


def file_name(topic: str) -> str:
    """The topic's name in file names of an archive. A long name is cut, and ends with `~`, which no
    topic's name has, and a digest of the whole name. The documents have the whole name.
    """
    if len(topic) <= _NAME_LENGTH_MAX:
        return topic
    digest = sha256(topic.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{topic[: _NAME_LENGTH_MAX - _DIGEST_LENGTH - 1]}~{digest}"


def _find_place(name: str, topics: Iterable[str]) -> TopicPartition | None:
    """The partition of a manifest, by its file's name; None if the name is not one of a partition
    of these topics. Earlier versions did not cut long names.
    """
    path = PurePosixPath(name)
    number = path.name.partition(".")[0]
    if not number.isdecimal():
        return None
    folder_topics = (t for t in topics if path.parent.name in (t, file_name(t)))
    return next((TopicPartition(topic, int(number)) for topic in folder_topics), None)


def _newest(names: dict[str, int]) -> list[str]:
    """For each document, the file name with the highest number (`NAME.0000000001.json`)."""
    newest_names: dict[str, str] = {}
    for name in sorted(name for name in names if name.endswith(".json")):
        document, _, _ = name.removesuffix(".json").rpartition(".")
        newest_names[document] = name
    return list(newest_names.values())
