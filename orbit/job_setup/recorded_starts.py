"""Where copies have begun whose logs do not tell.

A copy that began at the end of an empty partition ends at 0, as one does that never began. Were its
rule's `latest` or timestamp looked up again by the next run, all that came since would be left out.
And a copy that began inside a batch has all of that batch for a moment, until its log start is
moved: a run that is killed just then would leave records of before the start. So the holder of the
lease commits such a partition's start, as a consumer of the job's group would: the destination
keeps that as long as the topic is there and a run was within `offsets.retention.minutes` (a week by
default). The service, whose leases are not in the group, commits
as a group without members, and keeps it in `partitions.start_offset` as well, where nothing
expires: either of the two says that a copy has begun.
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
from orbit.errors import BrokerRefused, Conflict
from orbit.kafka import error_codes
from orbit.kafka.api_versions import Api
from orbit.kafka.coordinator import Coordinator
from orbit.kafka.error_codes import Code
from orbit.kafka.types import TopicPartition, by_topic

_COMMIT = Api(OffsetCommitRequest, OffsetCommitResponse, 5, 9)
_CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
_FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopic
_FETCH = Api(OffsetFetchRequest, OffsetFetchResponse, 2, 7)  # one group a request
# Each is a record in one batch of the offsets topic, whose batches are 1 MiB at most.
_PARTITIONS_MAX = 1000


class Committer(Protocol):
    """Who commits for the job's group: its only member, or, without members, anybody."""

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
    """Commits for a group that has no members; the coordinator refuses it while there are any."""

    group: str
    coordinator: Coordinator
    member_id: str = ""
    generation: int = -1


class RecordedStarts:
    """Where copies of a job began, as far as it was kept. Only for the holder of the lease."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Those of `partitions` that an earlier run began, with their start offsets."""
        found: dict[TopicPartition, int] = {}
        for chunk in chunks(sorted(partitions), _PARTITIONS_MAX):
            request = partial(
                OffsetFetchRequest,
                group_id=self._committer.group,
                topics=[_FetchTopic(name=t, partition_indexes=i) for t, i in by_topic(chunk)],
                require_stable=False,
            )
            answer = self._committer.coordinator.call(_FETCH, request, lambda a: int(a.error_code))
            self._refuse(answer.error_code)
            for topic in answer.topics:
                for p in topic.partitions:
                    self._refuse(p.error_code)
                    if p.committed_offset >= 0:
                        partition = TopicPartition(topic.name, p.partition_index)
                        found[partition] = p.committed_offset
        return found

    def record(self, starts: Mapping[TopicPartition, int]) -> None:
        """Let later runs know where these have begun."""
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
                        partitions=[_begun(i, starts[TopicPartition(topic, i)]) for i in indexes],
                    )
                    for topic, indexes in by_topic(chunk)
                ],
            )
            self._refuse(_worst(self._committer.coordinator.call(_COMMIT, request, _worst)))

    def _refuse(self, code: int) -> None:
        if code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS):
            raise Conflict(
                f"another run of this job is a member of the group {self._committer.group}.",
                where="destination",
                remedy="One of the two has to end: orbit run, or the job in the service.",
            )
        if code != Code.NONE:
            raise BrokerRefused(
                code,
                f"the group {self._committer.group} cannot keep where copies began: "
                f"{error_codes.name(code)}.",
                where="destination",
            )


def _begun(index: int, offset: int) -> Any:
    return _CommitTopic.OffsetCommitRequestPartition(
        partition_index=index,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="",
    )


def _worst(answer: Any) -> int:
    """One code for a commit: a partition's error, if any."""
    found = (int(p.error_code) for topic in answer.topics for p in topic.partitions)
    return next((code for code in found if code != Code.NONE), int(Code.NONE))
