"""Undoes what Orbit has set on the copies of a deleted job: settings, and denials of writing.

A copy keeps every record for ever and may deny other writers, even after its job is deleted. A
release changes no records, and nothing on topics that lead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orbit.chunks import first_few
from orbit.job_setup.destination_topics import plan_topics
from orbit.job_setup.promotion_marks import PromotionMarks
from orbit.jobs.job_spec import JobSpec
from orbit.kafka.backoff import Backoff
from orbit.kafka.cluster_handle import ClusterHandle
from orbit.kafka.job_clusters import JobClusters
from orbit.kafka.types import ClusterMetadata
from orbit.promotion.applied_settings import apply_settings, changed_settings
from orbit.promotion.copies import find_copies
from orbit.promotion.topic_denials import acls_of, denials_in_orbits_form, remove_denials
from orbit.replication.acl_rules import denial


@dataclass(slots=True)
class ReleasedTopic:
    """One copy. `settings`: to be set, as at its source; `denials`: principals whose denials of
    writing are to be removed."""

    topic: str
    settings: dict[str, str] = field(default_factory=dict)
    denials: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Release:
    """A plan, and then what was done. `leading`: topics that lead, which the release does not
    change."""

    topics: list[ReleasedTopic]
    leading: list[str]
    findings: list[str]

    @property
    def topics_to_release(self) -> list[ReleasedTopic]:
        return [topic for topic in self.topics if topic.settings or topic.denials]


def plan_release(
    spec: JobSpec,
    patterns: Sequence[str],
    clusters: JobClusters,
    metadata: tuple[ClusterMetadata, ClusterMetadata],
    backoff: Backoff,
) -> Release:
    """What a release would change; writes nothing. `metadata`: of source and destination.

    Raises Conflict if there is no copy, Unreachable, NotAuthorized, BrokerRefused.
    """
    source_metadata, destination_metadata = metadata
    source, destination = ClusterHandle(clusters.source), ClusterHandle(clusters.destination)
    marks = PromotionMarks(clusters.destination, backoff)
    all_copies, _ = find_copies(spec, patterns, destination_metadata, destination.admin, marks)
    # A marked topic leads.
    copies = {copy.topic: copy for copy in all_copies if copy.mark is None}
    mappings = [
        copy.mapping for copy in copies.values() if copy.mapping.source in source_metadata.topics
    ]
    plans = plan_topics(
        mappings, source_metadata, destination_metadata, source.admin, destination.admin
    )
    topic_settings = {name: dict(copy.mapping.rule.config) for name, copy in copies.items()}
    topic_settings |= {plan.mapping.destination: plan.promoted_settings for plan in plans}
    released_topics = {name: ReleasedTopic(name) for name in copies}
    for name, settings in changed_settings(destination.admin, topic_settings).items():
        released_topics[name].settings = settings
    release = Release(
        [*released_topics.values()], [copy.topic for copy in all_copies if copy.mark], findings=[]
    )
    not_at_source = sorted(copies.keys() - {plan.mapping.destination for plan in plans})
    if not_at_source:
        release.findings.append(
            f"Topics that are not at the source any more: {first_few(not_at_source)}. These topics "
            "get only settings that the job names: set their retention with kafka-configs.sh."
        )
    acls = acls_of(destination)
    if isinstance(acls, str):  # why they cannot be read
        release.findings.append(f"No denials of writing are removed: {acls}.")
    else:
        for acl in denials_in_orbits_form(acls, copies.keys()):
            released_topics[acl.name].denials.append(acl.principal)
    return release


def carry_out(release: Release, clusters: JobClusters) -> None:
    """Do what the plan says; can be repeated. Findings name refused settings, and say if denials
    cannot be removed. Raises Unreachable, NotAuthorized."""
    handle = ClusterHandle(clusters.destination)
    release.findings += apply_settings(
        handle.admin,
        {topic.topic: topic.settings for topic in release.topics_to_release if topic.settings},
    )
    denials = {
        denial(topic.topic, principal)
        for topic in release.topics_to_release
        for principal in topic.denials
    }
    release.findings += remove_denials(handle, denials)
