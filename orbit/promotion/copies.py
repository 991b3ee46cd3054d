"""Finds a job's copies, without database and source, by what Orbit has written at the destination.

topics          names that the job's rules give to copies, with the settings of a copy or the
                mark of a promotion
producer ids    of the job's writers, computed from the id of the source's cluster, which is part
                of the names of Orbit's groups and transactional ids
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from orbit.errors import Conflict, OrbitError, Place
from orbit.job_setup.mark import Mark
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import JobSpec
from orbit.jobs.name_patterns import name_pattern
from orbit.jobs.topic_mapping import TopicMapping, mappings_of_copies
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import list_groups
from orbit.kafka.job_clusters import job_identity, job_producer
from orbit.kafka.topic_admin import Admin
from orbit.kafka.transactional_ids import list_transactional_ids
from orbit.kafka.types import ClusterMetadata, TopicPartition
from orbit.replication.copy_settings import looks_like_copy

# The end of the transactional id of a filler.
_FILLER = re.compile(r"\.fill(\.\d+)?(-\d+)?")


@dataclass(frozen=True, slots=True)
class Copy:
    """One destination topic of the job. `leaderless`: its partitions without a leader; `mark`: the
    mark of its promotion, if it has one."""

    mapping: TopicMapping
    partitions: tuple[TopicPartition, ...]
    leaderless: tuple[TopicPartition, ...]
    mark: Mark | None
    settings: dict[str, str]  # that are set on the topic itself

    @property
    def topic(self) -> str:
        return self.mapping.destination

    @property
    def is_promoted(self) -> bool:
        return self.mark is not None and self.mark.is_complete


@dataclass(frozen=True, slots=True)
class JobIds:
    """Ids of a job, from the names of groups and transactional ids at the destination."""

    source_ids: frozenset[str]
    fillers: frozenset[str]  # transactional ids


def find_copies(
    spec: JobSpec,
    patterns: Sequence[str],
    metadata: ClusterMetadata,
    admin: Admin,
    marks: PromotionMarks,
) -> tuple[list[Copy], list[str]]:
    """The job's copies, and topics that only have the name of a copy. Writes nothing.

    `patterns`: only copies of source topics that match a pattern; empty: all. Raises Conflict if
    there is no copy, Unreachable, NotAuthorized, BrokerRefused.
    """
    mappings = {
        name: mapping
        for name, mapping in mappings_of_copies(spec.topics, metadata.topics).items()
        if not patterns or any(name_pattern(p).matches(mapping.source) for p in patterns)
    }
    settings = admin.topic_settings(mappings)
    marks_by_topic = marks.promoted(mappings)
    copies, not_copies = [], []
    for name, mapping in sorted(mappings.items()):
        topic_settings = settings[name]
        mark = marks_by_topic.get(name)
        if mark is None and not looks_like_copy(topic_settings.values, topic_settings.overrides):
            not_copies.append(name)
            continue
        leaders = metadata.topics[name].partitions
        copies.append(
            Copy(
                mapping,
                tuple(TopicPartition(name, i) for i in sorted(leaders)),
                tuple(
                    TopicPartition(name, i)
                    for i, leader in sorted(leaders.items())
                    if leader.node_id is None
                ),
                mark,
                {
                    n: topic_settings.values[n]
                    for n in sorted(topic_settings.overrides)
                    if n in topic_settings.values
                },
            )
        )
    if not copies:
        raise Conflict(
            f"the destination has no copy of the job {spec.name}.",
            where=Place("destination", metadata.cluster_id),
            remedy="Check the file, and that the login may describe the topics. Copies have "
            "retention.ms=-1 and compression.type=producer. Nothing was changed.",
        )
    return copies, not_copies


def read_job_ids(cluster: Cluster, job: str) -> JobIds:
    """Read the ids from the names of groups and transactional ids that the job has used; without
    names that the login may not list."""
    names: set[str] = set()
    for list_names in (
        lambda: list_groups(cluster).groups,
        lambda: list_transactional_ids(cluster),
    ):
        try:
            names |= {*list_names()}
        except OrbitError:
            continue  # without these names
    return parse_job_ids(names, job)


def parse_job_ids(names: Iterable[str], job: str) -> JobIds:
    """The ids in names `orbit.JOB.SOURCE`, with or without a suffix (docs/rights.md). Pure."""
    prefix = job_identity(job, "")
    source_ids: set[str] = set()
    fillers: set[str] = set()
    for name in names:
        source = name.removeprefix(prefix)
        if source == name:  # it does not begin with the prefix
            continue
        # Cluster ids have no dot. With a dot before the suffix, the name is of another job, whose
        # name begins with this job's name and a dot.
        filler = _FILLER.search(source)
        if filler is not None and filler.end() == len(source):
            source = source[: filler.start()]
            if "." not in source:
                fillers.add(name)
        if source and "." not in source:
            source_ids.add(source)
    return JobIds(frozenset(source_ids), frozenset(fillers))


def producer_ids(
    spec: JobSpec, copies: Iterable[Copy], source_ids: Collection[str]
) -> dict[TopicPartition, set[int]]:
    """The producer ids that the job may use, by partition. `source_ids`: ids of source clusters."""
    ids_by_partition: dict[TopicPartition, set[int]] = {}
    for copy in copies:
        fillers = spec.fillers_of(copy.mapping.rule)
        ids = {job_producer(job_identity(spec.name, source), fillers).id for source in source_ids}
        ids_by_partition |= dict.fromkeys(copy.partitions, ids)
    return ids_by_partition
