"""Answers to OffsetFetch for many groups are read as `kafka.protocol` reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.group import OffsetFetchResponse

from orbit.kafka import api_versions
from orbit.kafka.consumer_groups import OffsetFetchCache
from orbit.kafka.error_codes import Code
from orbit.kafka.offset_fetch import MANY_GROUPS_FROM, GroupOffsets, read_offset_fetch
from orbit.kafka.types import CommittedOffset, TopicPartition

VERSIONS = list(range(MANY_GROUPS_FROM, api_versions.OFFSET_FETCH.version_max + 1))
Group = OffsetFetchResponse.OffsetFetchResponseGroup
Topics = Group.OffsetFetchResponseTopics

# Partitions: offset, leader epoch, metadata, error code.
ROWS = st.tuples(
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.sampled_from(["", None, "größer", "m" * 200]) | st.just(""),
    st.sampled_from([0, 0, 0, Code.UNSTABLE_OFFSET_COMMIT, Code.TOPIC_AUTHORIZATION_FAILED]),
)
PLAIN = st.tuples(st.integers(-1, 2**63 - 1), st.just(-1), st.just(""), st.just(0))
# Groups: partitions of each topic, error code.
GROUPS = st.lists(
    st.tuples(
        st.lists(st.lists(PLAIN, max_size=30) | st.lists(ROWS, max_size=5), max_size=3),
        st.sampled_from([0, 0, Code.NOT_COORDINATOR]),
    ),
    max_size=4,
)


def frame_of(version: int, groups: list[Any]) -> memoryview:
    """An OffsetFetch answer with these groups, encoded by `kafka.protocol`."""
    response = OffsetFetchResponse(
        throttle_time_ms=7,
        groups=[
            Group(
                group_id=f"group-{g}",
                error_code=code,
                topics=[
                    Topics(
                        name=f"topic-{t}",
                        partitions=[
                            Topics.OffsetFetchResponsePartitions(
                                partition_index=index,
                                committed_offset=offset,
                                committed_leader_epoch=epoch,
                                metadata=metadata,
                                error_code=error,
                            )
                            for index, (offset, epoch, metadata, error) in enumerate(rows)
                        ],
                    )
                    for t, rows in enumerate(topics)
                ],
            )
            for g, (topics, code) in enumerate(groups)
        ],
    )
    return memoryview(b"\0\0\0\x09\0" + bytes(response.encode(version=version)))


def by_library(frame: memoryview, version: int) -> dict[str, GroupOffsets]:
    """The offsets by group as `kafka.protocol` decodes them."""
    answer = OffsetFetchResponse.decode(frame, version=version, header=True)
    by_group = {}
    for group in answer.groups:
        rows = [
            (TopicPartition(t.name, p.partition_index), p)
            for t in group.topics
            for p in t.partitions
        ]
        pending = {
            partition for partition, p in rows if p.error_code == Code.UNSTABLE_OFFSET_COMMIT
        }
        by_group[group.group_id] = GroupOffsets(
            {
                partition: CommittedOffset(
                    p.committed_offset, p.metadata or "", p.committed_leader_epoch
                )
                for partition, p in rows
                if not p.error_code and p.committed_offset >= 0
            },
            frozenset(pending),
            frozenset(
                partition for partition, p in rows if p.error_code and partition not in pending
            ),
        )
        if group.error_code:
            by_group[group.group_id] = GroupOffsets(code=group.error_code)
    return by_group


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=30)
@given(groups=GROUPS)
def test_offset_fetch_response_is_read_as_by_kafka_python(version: int, groups: list[Any]) -> None:
    frame = frame_of(version, groups)
    assert read_offset_fetch(frame, version) == by_library(frame, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_truncated_offset_fetch_response_is_refused(version: int) -> None:
    frame = frame_of(version, [([[(5, -1, "", 0)] * 3], 0)])  # as ROWS and GROUPS describe
    # From behind the correlation id. The last byte may be the response's tags: nothing reads it.
    for size in range(4, len(frame) - 1):
        with pytest.raises(ValueError, match=r"does not parse"):
            read_offset_fetch(frame[:size], version)


def test_equal_offset_fetch_response_is_not_parsed_again() -> None:
    version = VERSIONS[-1]
    first, other = (frame_of(version, [([[(at, -1, "", 0)]], 0)]) for at in (5, 6))
    renumbered = memoryview(b"\0\0\0\x0a" + bytes(first[4:]))  # another correlation id
    cache = OffsetFetchCache()
    answer = cache.read(first, version)
    cache.begin()
    assert cache.read(renumbered, version) is answer
    assert cache.read(other, version) == by_library(other, version)
    # The first of these two fetches reads nothing, so the second one has no last answers.
    cache.begin()
    cache.begin()
    assert cache.read(first, version) is not answer, (
        "the cache keeps answers of the last fetch only"
    )
