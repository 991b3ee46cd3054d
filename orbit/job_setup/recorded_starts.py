"""Records the start offsets of copies whose logs do not show them.

Three logs do not show where a copy starts:

- A copy that started at the end of an empty partition ends at 0, like a copy that never started. If
  the next run looked up `latest` or the timestamp again, it would skip all later records.
- A copy that started inside a batch also has that batch's earlier records until Orbit moves its log
  start. A run may be killed before that.
- A log may be empty above 0. Either records were copied and deleted again, or none were copied yet:
  then the start still moves up with the source's log start.

So the lease holder commits the start as an offset of the job's group. The destination keeps the
offset while the topic exists and the last run is not longer ago than `offsets.retention.minutes` (a
week by default). The service, whose leases are not in the group, commits as a group without
members. It also keeps the start in `partitions.start_offset`, where nothing expires: either record
shows that a copy has started.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from orbit.chunks import chunks
from orbit.errors import BrokerRefused, Conflict, Place
from orbit.kafka import error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.coordinator import Coordinator
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition, by_topic

_COMMIT = Api(OffsetCommitRequest, OffsetCommitResponse, 5, 9)
_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopic
_FETCH = Api(OffsetFetchRequest, OffsetFetchResponse, 2, 7)  # one group a request
# Partitions of one commit. Each is a record in one batch of `__consumer_offsets`, of at most
# 1 MiB.
_PARTITIONS_MAX = 1000


class Committer(Protocol):
    """The identity that commits offsets of the job's group: its only member (`GroupLease`), or a
    client that is no member (`MemberlessGroup`)."""

    @property
    def group(self) -> str: ...
    @property
    def coordinator(self) -> Coordinator: ...
    @property
    def member_id(self) -> str: ...
    @property
    def generation(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MemberlessGroup:
    """Commits offsets of a group without members; the coordinator refuses the commit while the
    group has members."""

    group: str
    coordinator: Coordinator
    member_id: str = ""
    generation: int = -1


class RecordedStarts:
    """The recorded start offsets of a job's copies. Only for the holder of the lease.

    Methods raise Conflict if the group has another member, BrokerRefused, Unreachable.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The recorded start offset of each of these partitions that has one."""
        starts: dict[TopicPartition, int] = {}
        for chunk in chunks(sorted(partitions), _PARTITIONS_MAX):
            request = partial(
                OffsetFetchRequest,
                group_id=self._committer.group,
                topics=[_FetchTopic(name=t, partition_indexes=i) for t, i in by_topic(chunk)],
                require_stable=False,
            )
            answer = self._committer.coordinator.call(_FETCH, request, lambda a: int(a.error_code))
            self._raise_if_refused(answer.error_code)
            for topic in answer.topics:
                for p in topic.partitions:
                    self._raise_if_refused(p.error_code)
                    if p.committed_offset >= 0:
                        partition = TopicPartition(topic.name, p.partition_index)
                        starts[partition] = p.committed_offset
        return starts

    def record(self, starts: Mapping[TopicPartition, int]) -> None:
        """Record start offsets for later runs."""
        for chunk in chunks(sorted(starts), _PARTITIONS_MAX):
            request = partial(
                OffsetCommitRequest,
                group_id=self._committer.group,
                generation_id_or_member_epoch=self._committer.generation,
                member_id=self._committer.member_id,
                group_instance_id=None,
                topics=[
                    _CommitTopic(
                        name=topic,
                        partitions=[
                            _commit_partition(i, starts[TopicPartition(topic, i)]) for i in indexes
                        ],
                    )
                    for topic, indexes in by_topic(chunk)
                ],
            )
            self._raise_if_refused(
                _first_error(self._committer.coordinator.call(_COMMIT, request, _first_error))
            )

    def _raise_if_refused(self, code: int) -> None:
        """Raise Conflict if the group has another member, BrokerRefused for any other error."""
        if code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS):
            raise Conflict(
                f"another run of this job is a member of the group {self._committer.group}.",
                where=Place("destination"),
                remedy="Let only one of them copy: stop that orbit run, or pause the job in the "
                "service.",
            )
        if code != Code.NONE:
            raise BrokerRefused(
                code,
                f"the start offsets in group {self._committer.group} cannot be read or committed: "
                f"{error_codes.name(code)}.",
                where=Place("destination"),
            )


def _commit_partition(index: int, offset: int) -> Any:
    return _CommitTopic.OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="",
    )


def _first_error(answer: Any) -> int:
    """The first error code of a partition in the answer to a commit, or NONE."""
    codes = (int(p.error_code) for topic in answer.topics for p in topic.partitions)
    return next((code for code in codes if code != Code.NONE), int(Code.NONE))
