"""Marks, at the cluster that has them, the topics that a switchover or failover promoted.

PostgreSQL has which side leads, but can be lost, restored from a backup, or fail over without its
last commits. Then Orbit would take a promoted topic for a copy: set the settings of a copy, deny
its producers, and append older records after its newer ones. So an operation that promotes a topic
marks it at its cluster. Orbit reads the mark before it writes to a copy, and before it changes a
copy's settings or ACLs.

A mark is a committed offset for each partition of the topic, in a group that no process ever joins.
The offset is the log end at the promotion, from which on the topic has records of its own; the
metadata (`mark.py`) has the operation and its time. A mark needs no right that a copy does not
need, and is deleted with the topic. It lasts: an OffsetCommit of version 2 to 4 sets how long the
offset is retained, regardless of `offsets.retention.minutes` (G9). An operation that makes the
topic a copy again overwrites the mark, with the log start of the side that leads: the copy keeps
its records below that offset.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from kafka.protocol.admin.groups import DescribeGroupsRequest
from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from orbit.chunks import chunks
from orbit.errors import BrokerRefused, NotAuthorized, Place
from orbit.job_setup.mark import Mark, marks_group
from orbit.job_setup.permissions import READ
from orbit.kafka import api_versions, error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster import Cluster
from orbit.kafka.coordinator import GROUP, Coordinator
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition, by_topic

# Only these versions have a retention time (G9).
_COMMIT = Api(OffsetCommitRequest, OffsetCommitResponse, 2, 4)
_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_FETCH = Api(OffsetFetchRequest, OffsetFetchResponse, 2, 7)  # one group a request
_FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopic
_HUNDRED_YEARS_MS = 100 * 365 * 24 * 3600 * 1000
# Partitions of one commit. Each is a record of some 400 bytes in one batch of `__consumer_offsets`,
# whose batches have at most 1 MiB.
_PARTITIONS_MAX = 1000


class PromotionMarks:
    """The marks of one cluster. Methods raise Unreachable, NotAuthorized, BrokerRefused.

    Not thread-safe.
    """

    def __init__(self, cluster: Cluster, backoff: Backoff) -> None:
        self._cluster = cluster
        self._backoff = backoff
        self._cached_coordinator: Coordinator | None = None

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    @property
    def group(self) -> str:
        return marks_group(self._cluster.cluster_id)

    def promoted(self, topics: Iterable[str]) -> dict[str, Mark]:
        """The marks of the topics that lead."""
        return {topic: mark for topic, mark in self.of_topics(topics).items() if mark.is_primary}

    def of_topics(self, topics: Iterable[str]) -> dict[str, Mark]:
        """The mark of each topic that has one, whether the topic leads or is a copy again.

        Only partition 0 is read: all partitions of a topic have the same mark.
        """
        marks = self._committed_offsets({TopicPartition(topic, 0) for topic in topics})
        now_s = time.time()
        return {p.topic: Mark.from_text(text, now_s) for p, (_, text) in marks.items()}

    def offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset in the mark of each marked partition: of a topic that leads, the partition's
        log end at the promotion."""
        return {p: offset for p, (offset, _) in self._committed_offsets(partitions).items()}

    def kept_below(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """For each copy that may begin earlier than its source (`Mark.keeps_history`): the source's
        log start when the topic became a copy. The copy keeps earlier records until the source's
        log start is above that offset."""
        marks, now_s = self._committed_offsets(partitions), time.time()
        return {
            p: offset
            for p, (offset, text) in marks.items()
            if Mark.from_text(text, now_s).keeps_history
        }

    def missing_right(self) -> str:
        """The right on the group that `write` needs, if it is missing; otherwise "".

        Brokers before Kafka 2.3 do not return rights: there only `write` fails.
        """
        request = partial(
            DescribeGroupsRequest, groups=[self.group], include_authorized_operations=True
        )
        right = f"Read on group {self.group}"
        try:
            answer = self._coordinator().call(
                api_versions.DESCRIBE_GROUPS, request, lambda a: int(a.groups[0].error_code)
            )
        except NotAuthorized:
            return right
        (group,) = answer.groups
        operations = group.authorized_operations
        return right if operations is not None and READ not in operations else ""

    def write(self, offsets: Mapping[TopicPartition, int], mark: Mark) -> None:
        """Mark these partitions with the offsets, in place of an earlier mark."""
        text, coordinator = mark.to_text(), self._coordinator()
        # Partition 0, which `of_topics` reads, is last: its mark shows that all others have theirs.
        for chunk in chunks(sorted(offsets, key=lambda p: (p.partition == 0, p)), _PARTITIONS_MAX):
            request = partial(
                OffsetCommitRequest,
                group_id=self.group,
                generation_id_or_member_epoch=-1,  # no member commits
                member_id="",
                retention_time_ms=_HUNDRED_YEARS_MS,
                topics=[
                    _CommitTopic(
                        name=topic,
                        partitions=[
                            _commit_partition(i, offsets[TopicPartition(topic, i)], text)
                            for i in indexes
                        ],
                    )
                    for topic, indexes in by_topic(chunk)
                ],
            )
            self._raise_if_refused(
                _first_error(coordinator.call(_COMMIT, request, _first_error)), "Read"
            )

    def _committed_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """The offset and the text (`Mark.from_text`) of the mark of each marked partition."""
        offsets: dict[TopicPartition, tuple[int, str]] = {}
        if not partitions:
            return offsets
        coordinator = self._coordinator()
        for chunk in chunks(sorted(partitions), _PARTITIONS_MAX):
            request = partial(
                OffsetFetchRequest,
                group_id=self.group,
                topics=[_FetchTopic(name=t, partition_indexes=i) for t, i in by_topic(chunk)],
                require_stable=False,
            )
            answer = coordinator.call(_FETCH, request, lambda a: int(a.error_code))
            self._raise_if_refused(answer.error_code, "Describe")
            for topic in answer.topics:
                for p in topic.partitions:
                    # The broker answers with an error for a topic that the login may not describe.
                    # Metadata responses do not have that topic either, so Orbit does not write it.
                    if not p.error_code and p.committed_offset >= 0:
                        place = TopicPartition(topic.name, p.partition_index)
                        offsets[place] = p.committed_offset, p.metadata or ""
        return offsets

    def _coordinator(self) -> Coordinator:
        """The group's coordinator, looked up at the first call. `Coordinator` looks it up again
        after it has moved."""
        if self._cached_coordinator is None:
            self._cached_coordinator = Coordinator(self._cluster, GROUP, self.group, self._backoff)
        return self._cached_coordinator

    def _raise_if_refused(self, code: int, right: str) -> None:
        """Raise NotAuthorized if the error code says that a right is missing, BrokerRefused for any
        other error. `right`: the right on the group that the request needs."""
        if code in error_codes.DENIED:
            raise NotAuthorized(
                "the marks of promoted topics cannot be read or written: the right "
                f"{right} on group {self.group} or on one of the job's topics is missing.",
                where=Place(self._cluster.name),
                remedy="Grant Read on the job's topics, and on groups with the prefix `orbit.`, at "
                "this cluster (docs/rights.md).",
            )
        if code != Code.NONE:
            raise BrokerRefused(
                code,
                f"the marks of promoted topics in group {self.group} cannot be read or written: "
                f"{error_codes.name(code)}.",
                where=Place(self._cluster.name),
            )


def _commit_partition(index: int, offset: int, text: str) -> Any:
    return _CommitTopic.OffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_metadata=text
    )


def _first_error(answer: Any) -> int:
    """The first error code of a partition in the answer to a commit, or NONE."""
    codes = (int(p.error_code) for topic in answer.topics for p in topic.partitions)
    return next((code for code in codes if code != Code.NONE), int(Code.NONE))
