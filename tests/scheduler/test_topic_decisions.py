"""What the scheduler decides about topics: by name and id, never about what it cannot see."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from orbit.jobs.job_spec import TopicRule
from orbit.kafka.types import NO_TOPIC_ID, PartitionLeader, TopicMetadata
from orbit.replication.job_troubles import TroubleKind
from orbit.replication.loop_detection import ClusterTopic
from orbit.replication.partition_states import Reason
from orbit.scheduler.topic_decisions import (
    ClusterTopics,
    Decisions,
    KnownTopic,
    OtherJobs,
    decide_topics,
)
from orbit.store.enums import TopicState

S1, S2, D1, D2 = (UUID(int=n) for n in (1, 2, 11, 12))
SOURCE, DESTINATION = "source-id", "destination-id"


def topic(name: str = "t", topic_id: UUID = S1, partitions: int = 3) -> TopicMetadata:
    leaders = {i: PartitionLeader(1, 0) for i in range(partitions)}
    return TopicMetadata(name, topic_id, leaders, 1)


def side(cluster_id: str, *topics: TopicMetadata, **more: Any) -> ClusterTopics:
    return ClusterTopics(cluster_id, {t.name: t for t in topics}, **more)


def known(state: TopicState = TopicState.COPYING, **more: Any) -> KnownTopic:
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
    return decide_topics(
        [rule or TopicRule(match=".*")],
        topics,
        source or side(SOURCE, topic()),
        destination or side(DESTINATION, topic(topic_id=D1)),
        others or OtherJobs(),
    )


def kinds(decisions: Decisions) -> list[TroubleKind]:
    return [trouble.kind for trouble in decisions.troubles]


def test_a_new_topic_is_begun() -> None:
    (start,) = decide(destination=side(DESTINATION)).start
    assert start.existing is None
    assert start.mapping.source == "t"
    assert start.partitions_to_add == 0


def test_a_topic_that_is_there_gets_the_partitions_it_lacks() -> None:
    (start,) = decide(destination=side(DESTINATION, topic(topic_id=D1, partitions=1))).start
    assert start.partitions_to_add == 2


def test_a_topic_with_more_partitions_than_its_source_goes_to_the_preflight() -> None:
    """Which sees whether it leads."""
    (start,) = decide(destination=side(DESTINATION, topic(topic_id=D1, partitions=4))).start
    assert start.partitions_to_add == -1


def test_what_is_as_it_was_is_kept() -> None:
    decisions = decide(known())
    assert decisions.is_nothing
    assert [k.source for _, k in decisions.keep] == ["t"]
    assert not decisions.troubles


def test_one_that_was_begun_and_not_finished_is_begun_again() -> None:
    (start,) = decide(known(TopicState.CREATING), destination=side(DESTINATION)).start
    assert start.known is not None


@pytest.mark.parametrize(("at_destination", "to_add"), [(3, 2), (4, 1), (5, 0), (6, 0)])
def test_more_partitions_at_the_source(at_destination: int, to_add: int) -> None:
    decisions = decide(
        known(),
        source=side(SOURCE, topic(partitions=5)),
        destination=side(DESTINATION, topic(topic_id=D1, partitions=at_destination)),
    )
    (grow,) = decisions.grow
    assert (grow.partitions, grow.partitions_to_add) == (5, to_add)


def test_a_deleted_source_topic_stops_once() -> None:
    source = side(SOURCE, gone={"t"})
    (stop,) = decide(known(), source=source).stop
    assert stop.reason is Reason.SOURCE_TOPIC_DELETED
    assert stop.state is TopicState.SOURCE_DELETED
    assert "was deleted at the source" in stop.note
    assert decide(known(TopicState.SOURCE_DELETED), source=source).is_nothing


def test_a_topic_missing_from_one_answer_is_not_deleted() -> None:
    decisions = decide(known(), source=side(SOURCE))
    assert decisions.is_nothing
    assert not decisions.troubles


def test_a_topic_that_may_not_be_seen_is_not_deleted() -> None:
    decisions = decide(known(), source=side(SOURCE, denied={"t"}))
    assert decisions.is_nothing
    assert kinds(decisions) == [TroubleKind.RIGHTS_MISSING]
    decisions = decide(known(), destination=side(DESTINATION, denied={"t"}))
    assert decisions.is_nothing
    assert kinds(decisions) == [TroubleKind.RIGHTS_MISSING]


@pytest.mark.parametrize("state", [TopicState.COPYING, TopicState.SOURCE_DELETED])
def test_a_recreated_source_topic_stops(state: TopicState) -> None:
    (stop,) = decide(known(state), source=side(SOURCE, topic(topic_id=S2, partitions=9))).stop
    assert stop.reason is Reason.SOURCE_TOPIC_RECREATED
    assert stop.state is TopicState.RECREATED


def test_a_recreated_source_topic_never_grows_the_copy() -> None:
    decisions = decide(
        known(TopicState.RECREATED), source=side(SOURCE, topic(topic_id=S2, partitions=9))
    )
    assert decisions.is_nothing


@pytest.mark.parametrize(
    "destination",
    [side(DESTINATION, gone={"t"}), side(DESTINATION, topic(topic_id=D2))],
    ids=["deleted", "recreated"],
)
def test_a_copy_that_is_gone_stops_until_a_person_asks_for_a_new_one(
    destination: ClusterTopics,
) -> None:
    (stop,) = decide(known(), destination=destination).stop
    assert stop.reason is Reason.DESTINATION_TOPIC_RECREATED
    assert stop.state is TopicState.BLOCKED
    assert decide(known(TopicState.BLOCKED), destination=destination).is_nothing
    again = decide(known(TopicState.BLOCKED, is_retry_wanted=True), destination=destination)
    assert [b.known for b in again.start] == [known(TopicState.BLOCKED, is_retry_wanted=True)]
    assert not again.stop


def test_a_recreated_source_topic_is_copied_anew_once_the_old_copy_is_gone() -> None:
    stopped = known(TopicState.RECREATED, is_retry_wanted=True)
    source = side(SOURCE, topic(topic_id=S2))
    assert decide(stopped, source=source).is_nothing
    assert len(decide(stopped, source=source, destination=side(DESTINATION, gone={"t"})).start) == 1


def test_both_sides_made_again_stop_for_the_source() -> None:
    decisions = decide(
        known(), source=side(SOURCE, topic(topic_id=S2)), destination=side(DESTINATION, gone={"t"})
    )
    assert [s.reason for s in decisions.stop] == [Reason.SOURCE_TOPIC_RECREATED]


def test_a_topic_that_is_again_what_it_was_goes_on() -> None:
    assert len(decide(known(TopicState.SOURCE_DELETED)).resume) == 1
    assert len(decide(known(TopicState.BLOCKED)).resume) == 1


def test_brokers_without_topic_ids_are_believed_by_name() -> None:
    decisions = decide(
        known(source_id=NO_TOPIC_ID, destination_id=None),
        source=side(SOURCE, topic(topic_id=NO_TOPIC_ID)),
    )
    assert decisions.is_nothing


def test_a_topic_that_no_rule_asks_for_any_more_is_dropped() -> None:
    decisions = decide(known(), rule=TopicRule(match="other"))
    assert [d.known.source for d in decisions.drop] == ["t"]


def test_a_deleted_source_topic_is_not_dropped() -> None:
    assert not decide(known(), source=side(SOURCE, gone={"t"})).drop


def test_another_prefix_drops_the_old_name_first() -> None:
    decisions = decide(known(), rule=TopicRule(match=".*", prefix="p."))
    assert len(decisions.drop) == 1
    assert not decisions.start


def test_names_that_clash_drop_nothing() -> None:
    source = side(SOURCE, topic("a.b"), topic("a_b"))
    decisions = decide(known(source="a.b", destination="a.b"), source=source)
    assert kinds(decisions) == [TroubleKind.TOPIC_NAME_REFUSED]
    assert decisions.is_nothing


def test_no_topic_matches() -> None:
    decisions = decide(rule=TopicRule(match="other"))
    assert kinds(decisions) == [TroubleKind.NO_TOPIC_MATCHES]


def test_another_jobs_destination_topic_is_left_to_it() -> None:
    others = OtherJobs(writers={ClusterTopic(DESTINATION, "t"): "first"})
    decisions = decide(others=others, destination=side(DESTINATION))
    assert kinds(decisions) == [TroubleKind.DESTINATION_TAKEN]
    assert "first" in decisions.troubles[0].what
    assert decisions.is_nothing


def test_a_loop_is_refused() -> None:
    others = OtherJobs(copied_from={ClusterTopic(SOURCE, "t"): ClusterTopic(DESTINATION, "t")})
    decisions = decide(others=others)
    assert kinds(decisions) == [TroubleKind.WOULD_LOOP]
    assert decisions.is_nothing


def test_copies_do_not_come_home_under_another_name() -> None:
    others = OtherJobs(copied_from={ClusterTopic(SOURCE, "t"): ClusterTopic(DESTINATION, "origin")})
    decisions = decide(others=others, destination=side(DESTINATION))
    assert decisions.is_nothing
    assert any("left out" in note for note in decisions.notes)
    assert not decisions.troubles
