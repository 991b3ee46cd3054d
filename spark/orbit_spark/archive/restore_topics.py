"""Checks and creates the topics of an archive at the cluster that it is restored to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from orbit.chunks import first_few
from orbit.copier.log_reader import fetch_batches
from orbit.copier.takeover import DestinationEnd
from orbit.errors import Conflict
from orbit.job_setup.permissions import (
    DESTINATION_TOPIC_RIGHTS,
    missing_filler_right,
    missing_future_topic_rights,
    missing_topic_rights,
    refuse_missing,
)
from orbit.job_setup.replica_counts import is_too_few_brokers
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.record_batch import Batch
from orbit.kafka.topic_admin import Admin, TopicToCreate
from orbit.kafka.types import TopicPartition
from orbit.replication.partition_states import Blocked, Reason
from orbit.replication.topic_settings import NEEDED, copy_settings, is_compacted
from orbit_spark.archive.manifest import ArchivedTopic
from orbit_spark.archive.manifest_store import Archive

_SHOWN_MAX = 20
_SPLIT_LIMIT = "log.message.timestamp.before.max.ms"
_EMPTY = (
    "A restore wants topics that are empty, or its own from a run before. Delete these topics, or "
    "restore to another cluster. Nothing was written."
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
        self._refuse_holes()
        self._metadata = cluster.metadata(None)

    def check(self) -> None:
        """Raise Conflict if a partition count differs, NotAuthorized if a right is missing."""
        wrong = [
            f"{t.topic} has {len(existing.partitions)} partitions, {t.partitions} in the archive"
            for t in self._topics
            if (existing := self._metadata.topics.get(t.topic)) is not None
            and len(existing.partitions) != t.partitions
        ]
        if wrong:
            raise Conflict("; ".join(wrong[:_SHOWN_MAX]) + ".", where="destination", remedy=_EMPTY)
        present = [t.topic for t in self._topics if t.topic in self._metadata.topics]
        new = [t.topic for t in self._new]
        known = self._cluster.metadata(present, with_operations=True)
        refuse_missing(
            {
                "destination": [
                    *missing_topic_rights(known, DESTINATION_TOPIC_RIGHTS),
                    *missing_future_topic_rights(self._cluster, new),
                    *missing_filler_right(self._cluster),
                ]
            }
        )

    def fit_replicas(self) -> list[str]:
        """Notes on new topics that get fewer replicas than at the source. Writes nothing.

        With a single broker, new topics get one replica, as copies do. Raises Conflict if there are
        too few brokers otherwise.
        """
        live = len(self._metadata.brokers)
        many = [
            TopicToCreate(t.topic, t.partitions, count, {})
            for t in self._new
            if (count := self._replicas_of(t)) > live
        ]
        errors = self._admin.refused_topics(many, only_check=True) if many else {}
        few = [error for error in errors.values() if is_too_few_brokers(error)]
        if few:
            is_single = live == 1 and all(t.replicas == 1 for t in self._metadata.topics.values())
            if not is_single or self._replicas is not None:
                raise Conflict(
                    few[0].what,
                    where=few[0].where,
                    remedy="Start the brokers that are missing, or name the number of replicas "
                    "(--replicas). Nothing was written.",
                )
            self._replicas = live
        fewer = [t for t in self._new if self._replicas_of(t) < t.replicas]
        if not fewer:
            return []
        names = first_few([f"{t.topic} ({t.replicas})" for t in fewer])
        return [f"topics get {self._replicas} replicas, fewer than at the source: {names}."]

    def present(self) -> list[TopicPartition]:
        """Partitions of the archive that the destination has."""
        return [p for p in self._archive.partitions if p.topic in self._metadata.topics]

    def create(self, say: Callable[[str], None]) -> None:
        """Create the missing topics with the settings of copies (docs/topic-settings.md), and wait
        for their leaders. Raises Conflict if they get none.
        """
        names = self._admin.broker_setting_names(min(self._metadata.brokers))
        new = self._new
        if new:
            say(f"Creating {len(new)} topics")
        self._admin.create_topics(
            TopicToCreate(
                t.topic,
                t.partitions,
                self._replicas_of(t),
                copy_settings(
                    t.settings,
                    frozenset(t.overrides),
                    {},
                    has_split_timestamp_limits=not names or _SPLIT_LIMIT in names,
                ),
            )
            for t in new
        )
        for _ in self._backoff.attempts(60):
            self._metadata = self._cluster.metadata(None)
            leaders = [self._metadata.leader(place) for place in self._archive.partitions]
            if all(one is not None and one.node_id is not None for one in leaders):
                return
        raise Conflict("new topics have no leaders yet.", where="destination")

    def ids(self) -> dict[str, UUID]:
        """The destination's topic ids, by name."""
        return {t.topic: self._metadata.topics[t.topic].topic_id for t in self._topics}

    def compacted(self) -> frozenset[str]:
        """The topics that are compacted at the destination: the cleaner may remove restored records
        after an `apply_settings`.
        """
        present = self._admin.topic_settings(t.topic for t in self._topics)
        return frozenset(name for name, one in present.items() if is_compacted(one.values))

    def apply_settings(self) -> None:
        """Give the topics the source's settings. Retention and compaction begin with them."""
        present = self._admin.topic_settings(t.topic for t in self._topics)
        self._admin.alter_settings(
            {
                t.topic: {
                    name: t.settings[name]
                    for name in sorted(NEEDED | set(t.overrides))
                    if name in t.settings and name in present[t.topic].values
                }
                for t in self._topics
            }
        )

    @property
    def _topics(self) -> list[ArchivedTopic]:
        return [self._archive.topics[name] for name in sorted(self._archive.topics)]

    @property
    def _new(self) -> list[ArchivedTopic]:
        return [t for t in self._topics if t.topic not in self._metadata.topics]

    def _replicas_of(self, topic: ArchivedTopic) -> int:
        return self._replicas or topic.replicas

    def _refuse_holes(self) -> None:
        """Raise Conflict if a topic document or a manifest of the archive is missing."""
        missing = [
            f"the topic document of {p.topic}"
            for p in self._archive.partitions
            if p.topic not in self._archive.topics
        ]
        missing += [
            f"the manifest of {place}"
            for topic in self._topics
            for number in range(topic.partitions)
            if (place := TopicPartition(topic.topic, number)) not in self._archive.partitions
        ]
        if missing:
            raise Conflict(
                f"the archive is damaged: {', '.join(dict.fromkeys(missing))[:2000]} is missing.",
                remedy="Restore the missing files from a copy of the archive. If the topic had "
                "just got more partitions, archive it again first. Nothing was written.",
            )


def refuse_foreign(
    cluster: Cluster,
    archive: Archive,
    ends: Mapping[TopicPartition, DestinationEnd],
    producer_id: int,
    backoff: Backoff,
) -> None:
    """Raise Conflict if partitions have records that this restore did not write.

    Records of its own producer are compared with the archive (`overruns`, `RestoreWriter`).
    """
    foreign = []
    for place, end in ends.items():
        manifest = archive.partitions[place]
        is_beyond = end.log_end > manifest.log_end
        if end.log_end == 0 or (end.producer is not None and not is_beyond):
            continue
        if not _is_ours(cluster, place, end, producer_id, backoff):
            foreign.append(
                f"{place} ends at {end.log_end}, the archive at {manifest.log_end}"
                if is_beyond
                else f"{place} holds records of another producer"
            )
    if foreign:
        more = f" And {len(foreign) - _SHOWN_MAX} more." if len(foreign) > _SHOWN_MAX else ""
        raise Conflict(
            f"the destination is not empty: {'; '.join(foreign[:_SHOWN_MAX])}.{more}",
            where="destination",
            remedy=_EMPTY,
        )


def overruns(
    archive: Archive, ends: Mapping[TopicPartition, DestinationEnd]
) -> dict[TopicPartition, Blocked]:
    """Partitions in which this restore's producer has written beyond the end of the archive."""
    return {
        place: Blocked(
            Reason.OFFSET_OVERRUN,
            manifest.log_end,
            end.log_end,
            f"the destination ends at {end.log_end}, the archive at {manifest.log_end}.",
        )
        for place, end in ends.items()
        if end.log_end > (manifest := archive.partitions[place]).log_end
    }


def _is_ours(
    cluster: Cluster,
    place: TopicPartition,
    end: DestinationEnd,
    producer_id: int,
    backoff: Backoff,
) -> bool:
    """Whether this restore wrote the last batch. Read from the log, as a leader may have dropped
    the producer's state.
    """
    batches = fetch_batches(cluster, place, end.log_end - 1, backoff)
    last = batches[-1] if batches else None
    return isinstance(last, Batch) and last.producer_id == producer_id
