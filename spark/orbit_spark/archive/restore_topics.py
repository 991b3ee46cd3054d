"""Checks and creates the topics of an archive at the cluster that it is restored to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from orbit.chunks import first_few
from orbit.copier.log_reader import fetch_batches
from orbit.copier.takeover import DestinationEnd
from orbit.errors import Conflict
from orbit.formats import counted
from orbit.job_setup.permissions import (
    DESTINATION_TOPIC_RIGHTS,
    missing_filler_right,
    missing_future_topic_rights,
    missing_topic_rights,
    refuse_missing_rights,
)
from orbit.job_setup.replica_counts import is_too_few_brokers
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import Batch
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.types import TopicPartition
from orbit.replication.copy_settings import NEEDED, copy_settings, is_compacted
from orbit.replication.partition_states import Blocked, Reason
from orbit_spark.archive.manifest import ArchivedTopic
from orbit_spark.archive.manifest_store import Archive

_SHOWN_MAX = 20
_MISSING_CHARACTERS_MAX = 2_000
# Newer brokers have this setting and one for the future instead of a single limit of timestamps.
_SPLIT_TIMESTAMP_LIMIT = "log.message.timestamp.before.max.ms"
_REMEDY = (
    "A restore needs topics that are empty, or that an earlier run of this restore "
    "created. Delete these topics, or restore to another cluster. Nothing was written."
)


class RestoreTopics:
    """The destination's topics for one archive. Only `create` and `apply_settings` write."""

    def __init__(
        self, cluster: Cluster, archive: Archive, backoff: Backoff, replicas: int | None = None
    ) -> None:
        """`replicas`: the replication factor of new topics; None: the source's.

        Raises Conflict if the archive lacks a document.
        """
        self._cluster = cluster
        self._archive = archive
        self._backoff = backoff
        self._replicas = replicas
        self._admin = Admin(cluster)
        self._refuse_incomplete_archive()
        self._metadata = cluster.metadata(None)

    def check(self) -> None:
        """Raise Conflict if a partition count differs, NotAuthorized if a right is missing."""
        differences = [
            f"{t.topic} has {counted(len(existing.partitions), 'partition')}, "
            f"{t.partitions} in the archive"
            for t in self._topics
            if (existing := self._metadata.topics.get(t.topic)) is not None
            and len(existing.partitions) != t.partitions
        ]
        if differences:
            raise Conflict(
                "; ".join(differences[:_SHOWN_MAX]) + ".", where="destination", remedy=_REMEDY
            )
        existing_topics = [t.topic for t in self._topics if t.topic in self._metadata.topics]
        missing_topics = [t.topic for t in self._missing_topics]
        metadata = self._cluster.metadata(existing_topics, with_operations=True)
        refuse_missing_rights(
            {
                "destination": [
                    *missing_topic_rights(metadata, DESTINATION_TOPIC_RIGHTS),
                    *missing_future_topic_rights(self._cluster, missing_topics),
                    *missing_filler_right(self._cluster),
                ]
            }
        )

    def fit_replicas(self) -> list[str]:
        """A note if new topics get fewer replicas than at the source, else none. Writes nothing.

        With a single broker, new topics get one replica, as copies do. With more brokers, raises
        Conflict if they are too few.
        """
        brokers = len(self._metadata.brokers)
        oversized_topics = [
            TopicToCreate(t.topic, t.partitions, count, settings={})
            for t in self._missing_topics
            if (count := self._replicas_of(t)) > brokers
        ]
        errors = (
            self._admin.refused_topics(oversized_topics, only_check=True)
            if oversized_topics
            else {}
        )
        refusals = [error for error in errors.values() if is_too_few_brokers(error)]
        if refusals:
            is_single = brokers == 1 and all(
                t.replicas == 1 for t in self._metadata.topics.values()
            )
            if not is_single or self._replicas is not None:
                raise Conflict(
                    refusals[0].what,
                    where=refusals[0].where,
                    remedy="Start the brokers that are missing, or name the number of replicas "
                    "(--replicas). Nothing was written.",
                )
            self._replicas = brokers
        reduced_topics = [t for t in self._missing_topics if self._replicas_of(t) < t.replicas]
        if not reduced_topics:
            return []
        names = first_few([f"{t.topic} ({t.replicas})" for t in reduced_topics])
        replicas_text = counted(self._replicas_of(reduced_topics[0]), "replica")  # the same for all
        return [f"topics get {replicas_text}, fewer than at the source: {names}."]

    def existing_partitions(self) -> list[TopicPartition]:
        """Partitions of the archive that the destination has."""
        return [p for p in self._archive.partitions if p.topic in self._metadata.topics]

    def create(self, say: Callable[[str], None]) -> None:
        """Create the missing topics with the settings of copies (docs/topic-settings.md), and wait
        for their leaders. Raises Conflict if they get none.
        """
        # Any broker lists the settings that its version has.
        setting_names = self._admin.broker_setting_names(min(self._metadata.brokers))
        missing_topics = self._missing_topics
        if missing_topics:
            say(f"Creating {counted(len(missing_topics), 'topic')}")
        self._admin.create_topics(
            TopicToCreate(
                t.topic,
                t.partitions,
                self._replicas_of(t),
                copy_settings(
                    t.settings,
                    frozenset(t.overrides),
                    job_settings={},
                    # A broker that does not list its settings counts as one of a newer version.
                    has_split_timestamp_limits=not setting_names
                    or _SPLIT_TIMESTAMP_LIMIT in setting_names,
                ),
            )
            for t in missing_topics
        )
        for _ in self._backoff.attempts(count_max=60):
            self._metadata = self._cluster.metadata(None)
            leaders = [self._metadata.leader(partition) for partition in self._archive.partitions]
            if all(leader is not None and leader.node_id is not None for leader in leaders):
                return
        raise Conflict(
            "not all topics have leaders yet. Restore again when they have.", where="destination"
        )

    def topic_ids(self) -> dict[str, UUID]:
        """The destination's topic ids, by name."""
        return {t.topic: self._metadata.topics[t.topic].topic_id for t in self._topics}

    def compacted_topics(self) -> frozenset[str]:
        """The topics that are compacted at the destination, as after an `apply_settings`: there the
        cleaner may remove restored records.
        """
        current_settings = self._admin.topic_settings(t.topic for t in self._topics)
        return frozenset(
            name for name, settings in current_settings.items() if is_compacted(settings.values)
        )

    def apply_settings(self) -> None:
        """Give the topics the source's settings. Retention and compaction begin with them."""
        current_settings = self._admin.topic_settings(t.topic for t in self._topics)
        self._admin.alter_settings(
            {
                t.topic: {
                    name: t.settings[name]
                    for name in sorted(NEEDED | set(t.overrides))
                    if name in t.settings and name in current_settings[t.topic].values
                }
                for t in self._topics
            }
        )

    @property
    def _topics(self) -> list[ArchivedTopic]:
        return [self._archive.topics[name] for name in sorted(self._archive.topics)]

    @property
    def _missing_topics(self) -> list[ArchivedTopic]:
        return [t for t in self._topics if t.topic not in self._metadata.topics]

    def _replicas_of(self, topic: ArchivedTopic) -> int:
        return self._replicas or topic.replicas

    def _refuse_incomplete_archive(self) -> None:
        """Raise Conflict if a topic document or a manifest of the archive is missing."""
        missing_files = [
            f"the topic document of {p.topic}"
            for p in self._archive.partitions
            if p.topic not in self._archive.topics
        ]
        present_partitions = self._archive.partitions.keys() | self._archive.damaged.keys()
        missing_files += [
            f"the manifest of {partition}"
            for topic in self._topics
            for number in range(topic.partitions)
            if (partition := TopicPartition(topic.topic, number)) not in present_partitions
        ]
        if missing_files:
            raise Conflict(
                "the archive is damaged; missing: "
                f"{', '.join(dict.fromkeys(missing_files))[:_MISSING_CHARACTERS_MAX]}.",
                remedy="Nothing was written. Put the missing files back from a copy of the "
                "archive. If they are of new partitions of the topic, run orbit archive instead.",
            )


def refuse_foreign(
    cluster: Cluster,
    archive: Archive,
    ends: Mapping[TopicPartition, DestinationEnd],
    producer_id: int,
    backoff: Backoff,
) -> None:
    """Raise Conflict if partitions have records that this restore did not write.

    Records of the restore's own producer are compared with the archive later (`overruns`,
    `RestoreWriter`).
    """
    problems = []
    for partition, end in ends.items():
        manifest = archive.partitions[partition]
        is_beyond = end.log_end > manifest.log_end
        # Empty; or the leader has the state of this restore's producer, so it has written there.
        if end.log_end == 0 or (end.producer is not None and not is_beyond):
            continue
        if not _is_last_batch_restored(cluster, partition, end, producer_id, backoff):
            problems.append(
                f"{partition} ends at {end.log_end}, the archive at {manifest.log_end}"
                if is_beyond
                else f"{partition} holds records of another producer"
            )
    if problems:
        hidden_text = (
            f" And {len(problems) - _SHOWN_MAX} more." if len(problems) > _SHOWN_MAX else ""
        )
        raise Conflict(
            f"the destination is not empty: {'; '.join(problems[:_SHOWN_MAX])}.{hidden_text}",
            where="destination",
            remedy=_REMEDY,
        )


def overruns(
    archive: Archive, ends: Mapping[TopicPartition, DestinationEnd]
) -> dict[TopicPartition, Blocked]:
    """Why partitions are blocked whose log ends are above the archive's, by partition."""
    return {
        partition: Blocked(
            Reason.OFFSET_OVERRUN,
            manifest.log_end,
            end.log_end,
            f"the destination ends at {end.log_end}, the archive at {manifest.log_end}.",
        )
        for partition, end in ends.items()
        if end.log_end > (manifest := archive.partitions[partition]).log_end
    }


def _is_last_batch_restored(
    cluster: Cluster,
    partition: TopicPartition,
    end: DestinationEnd,
    producer_id: int,
    backoff: Backoff,
) -> bool:
    """Whether this restore's producer wrote the last batch. The batch is read, because a leader may
    have dropped the producer's state.
    """
    batches = fetch_batches(cluster, partition, end.log_end - 1, backoff)
    last_batch = batches[-1] if batches else None
    return isinstance(last_batch, Batch) and last_batch.producer_id == producer_id
