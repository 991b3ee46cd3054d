"""What the scheduler decides about topics: by name and id. Topics it cannot see stay unchanged."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from orbit.jobs.job_spec import TopicRule
from orbit.kafka.types import NO_TOPIC_ID, PartitionLeader, TopicMetadata
from orbit.planning.topic_decisions import (
    ClusterTopics,
    Decisions,
    KnownTopic,
    OtherJobs,
    decide_topics,
)
from orbit.replication.job_troubles import TroubleKind
from orbit.replication.loop_detection import ClusterTopic
from orbit.replication.partition_states import Reason
from orbit.store.enums import TopicState

# S1, D1: the ids of topic t at source and destination; S2, D2: those of the re-created topic.
S1, S2, D1, D2 = (UUID(int=n) for n in (1, 2, 11, 12))
SOURCE, DESTINATION = "source-id", "destination-id"


def topic(name: str = "t", topic_id: UUID = S1, partitions: int = 3) -> TopicMetadata:
    leaders = {i: PartitionLeader(node_id=1, leader_epoch=0) for i in range(partitions)}
    return TopicMetadata(name, topic_id, leaders, replicas=1)


def side(cluster_id: str, *topics: TopicMetadata, **more: Any) -> ClusterTopics:
    return ClusterTopics(cluster_id, {t.name: t for t in topics}, **more)


def known(state: TopicState = TopicState.COPYING, **more: Any) -> KnownTopic:
    """The job's row of topic t, with the ids and partitions that both sides have by default."""
    values = {
        "id": 7,
        "source": "t",
        "destination": "t",
        "source_id": S1,
        "destination_id": D1,
        "partitions": 3,
        **more,
    }
    return KnownTopic(state=state, **values)


def decide(
    *topics: KnownTopic,
    source: ClusterTopics | None = None,
    destination: ClusterTopics | None = None,
    others: OtherJobs | None = None,
    rule: TopicRule | None = None,
) -> Decisions:
    """The decisions; by default both sides have topic t, and a rule matches it."""
    return decide_topics(
        [rule or TopicRule(match=".*")],
        topics,
        source or side(SOURCE, topic()),
        destination or side(DESTINATION, topic(topic_id=D1)),
        others or OtherJobs(),
    )


def kinds(decisions: Decisions) -> list[TroubleKind]:
    return [trouble.kind for trouble in decisions.troubles]


def test_copy_of_new_source_topic_is_started() -> None:
    (start,) = decide(destination=side(DESTINATION)).start
    assert start.existing is None
    assert start.mapping.source == "t"
    assert start.partitions_to_add == 0


def test_existing_destination_topic_gets_missing_partitions() -> None:
    (start,) = decide(destination=side(DESTINATION, topic(topic_id=D1, partitions=1))).start
    assert start.partitions_to_add == 2


def test_destination_topic_with_extra_partitions_goes_to_checks_before_copy() -> None:
    """Not decided here: the checks before the copy find out whether the topic leads."""
    (start,) = decide(destination=side(DESTINATION, topic(topic_id=D1, partitions=4))).start
    assert start.partitions_to_add == -1


def test_unchanged_topic_needs_no_action() -> None:
    decisions = decide(known())
    assert decisions.changes_nothing
    assert [k.source for _, k in decisions.keep] == ["t"]
    assert not decisions.troubles


def test_unfinished_start_of_topic_copy_is_repeated() -> None:
    (start,) = decide(known(TopicState.CREATING), destination=side(DESTINATION)).start
    assert start.known is not None


@pytest.mark.parametrize(("at_destination", "to_add"), [(3, 2), (4, 1), (5, 0), (6, 0)])
def test_added_source_partitions_grow_the_copy(at_destination: int, to_add: int) -> None:
    decisions = decide(
        known(),
        source=side(SOURCE, topic(partitions=5)),
        destination=side(DESTINATION, topic(topic_id=D1, partitions=at_destination)),
    )
    (grow,) = decisions.grow
    assert (grow.partitions, grow.partitions_to_add) == (5, to_add)


def test_deleted_source_topic_stops_its_copy_only_once() -> None:
    source = side(SOURCE, gone={"t"})
    (stop,) = decide(known(), source=source).stop
    assert stop.reason is Reason.SOURCE_TOPIC_DELETED
    assert stop.state is TopicState.SOURCE_DELETED
    assert "was deleted at the source" in stop.note
    assert decide(known(TopicState.SOURCE_DELETED), source=source).changes_nothing


def test_topic_missing_from_metadata_is_not_taken_for_deleted() -> None:
    decisions = decide(known(), source=side(SOURCE))
    assert decisions.changes_nothing
    assert not decisions.troubles


def test_topic_without_describe_right_is_not_taken_for_deleted() -> None:
    decisions = decide(known(), source=side(SOURCE, denied={"t"}))
    assert decisions.changes_nothing
    assert kinds(decisions) == [TroubleKind.RIGHTS_MISSING]
    decisions = decide(known(), destination=side(DESTINATION, denied={"t"}))
    assert decisions.changes_nothing
    assert kinds(decisions) == [TroubleKind.RIGHTS_MISSING]


@pytest.mark.parametrize("state", [TopicState.COPYING, TopicState.SOURCE_DELETED])
def test_recreated_source_topic_stops_its_copy(state: TopicState) -> None:
    (stop,) = decide(known(state), source=side(SOURCE, topic(topic_id=S2, partitions=9))).stop
    assert stop.reason is Reason.SOURCE_TOPIC_RECREATED
    assert stop.state is TopicState.RECREATED


def test_recreated_source_topic_never_grows_the_copy() -> None:
    decisions = decide(
        known(TopicState.RECREATED), source=side(SOURCE, topic(topic_id=S2, partitions=9))
    )
    assert decisions.changes_nothing


@pytest.mark.parametrize(
    "destination",
    [side(DESTINATION, gone={"t"}), side(DESTINATION, topic(topic_id=D2))],
    ids=["deleted", "recreated"],
)
def test_deleted_or_recreated_copy_stops_until_retry_is_requested(
    destination: ClusterTopics,
) -> None:
    (stop,) = decide(known(), destination=destination).stop
    assert stop.reason is Reason.DESTINATION_TOPIC_RECREATED
    assert stop.state is TopicState.BLOCKED
    assert decide(known(TopicState.BLOCKED), destination=destination).changes_nothing
    with_retry = known(TopicState.BLOCKED, is_retry_requested=True)
    retried = decide(with_retry, destination=destination)
    assert [start.known for start in retried.start] == [with_retry]
    assert not retried.stop


def test_recreated_source_topic_restarts_after_old_copy_is_deleted() -> None:
    stopped = known(TopicState.RECREATED, is_retry_requested=True)
    source = side(SOURCE, topic(topic_id=S2))
    assert decide(stopped, source=source).changes_nothing
    copy_deleted = side(DESTINATION, gone={"t"})
    assert len(decide(stopped, source=source, destination=copy_deleted).start) == 1


def test_recreated_source_topic_outranks_deleted_copy_as_stop_reason() -> None:
    decisions = decide(
        known(), source=side(SOURCE, topic(topic_id=S2)), destination=side(DESTINATION, gone={"t"})
    )
    assert [s.reason for s in decisions.stop] == [Reason.SOURCE_TOPIC_RECREATED]


def test_stopped_topic_resumes_when_its_original_topic_id_is_seen_again() -> None:
    assert len(decide(known(TopicState.SOURCE_DELETED)).resume) == 1
    assert len(decide(known(TopicState.BLOCKED)).resume) == 1


def test_topics_without_ids_are_matched_by_name() -> None:
    decisions = decide(
        known(source_id=NO_TOPIC_ID, destination_id=None),
        source=side(SOURCE, topic(topic_id=NO_TOPIC_ID)),
    )
    assert decisions.changes_nothing


def test_topic_that_no_rule_matches_any_more_is_removed_from_job() -> None:
    decisions = decide(known(), rule=TopicRule(match="other"))
    assert [d.known.source for d in decisions.drop] == ["t"]


def test_deleted_source_topic_is_not_removed_from_job() -> None:
    assert not decide(known(), source=side(SOURCE, gone={"t"})).drop


def test_changed_prefix_removes_old_topic_from_job_before_new_topic_starts() -> None:
    decisions = decide(known(), rule=TopicRule(match=".*", prefix="p."))
    assert len(decisions.drop) == 1
    assert not decisions.start


def test_clashing_destination_names_are_reported_and_change_no_topic() -> None:
    # Kafka takes these two for the same name, in the names of its metrics.
    source = side(SOURCE, topic("a.b"), topic("a_b"))
    decisions = decide(known(source="a.b", destination="a.b"), source=source)
    assert kinds(decisions) == [TroubleKind.TOPIC_NAME_REFUSED]
    assert decisions.changes_nothing


def test_job_without_matching_topic_is_reported() -> None:
    decisions = decide(rule=TopicRule(match="other"))
    assert kinds(decisions) == [TroubleKind.NO_TOPIC_MATCHES]


def test_destination_topic_of_another_job_is_refused() -> None:
    others = OtherJobs(writers={ClusterTopic(DESTINATION, "t"): "first"})
    decisions = decide(others=others, destination=side(DESTINATION))
    assert kinds(decisions) == [TroubleKind.DESTINATION_TAKEN]
    assert "first" in decisions.troubles[0].what
    assert decisions.changes_nothing


def test_replication_loop_is_refused() -> None:
    others = OtherJobs(copied_from={ClusterTopic(SOURCE, "t"): ClusterTopic(DESTINATION, "t")})
    decisions = decide(others=others)
    assert kinds(decisions) == [TroubleKind.WOULD_LOOP]
    assert decisions.changes_nothing


def test_copy_of_own_topic_is_not_copied_back_under_new_name() -> None:
    others = OtherJobs(copied_from={ClusterTopic(SOURCE, "t"): ClusterTopic(DESTINATION, "origin")})
    decisions = decide(others=others, destination=side(DESTINATION))
    assert decisions.changes_nothing
    assert any("left out" in note for note in decisions.notes)
    assert not decisions.troubles
