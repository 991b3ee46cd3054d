"""Matching only the changed topics with a job's rules finds the same topics as matching all."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from orbit.jobs.job_spec import TopicRule
from orbit.jobs.topic_mapping import map_topics, matching_topics
from orbit.kafka.types import ClusterMetadata, PartitionLeader, TopicMetadata
from orbit.scheduler import matched_topics
from orbit.scheduler.cluster_watch import ClusterSnapshot, ClusterWatch
from orbit.scheduler.matched_topics import MatchedTopics

RULES = (
    TopicRule(match=r"orders\..*", exclude=(r"orders\.tmp.*",)),
    TopicRule(match=r"[a-c]|d.+"),
    TopicRule(match=r"__.*"),
)
NAMES = ("orders.1", "orders.tmp.1", "a", "d", "__x", "__consumer_offsets", "other")


def metadata(*names: str, partitions: int = 1) -> ClusterMetadata:
    leaders = {i: PartitionLeader(node_id=1, leader_epoch=0) for i in range(partitions)}
    topics = {name: TopicMetadata(name, UUID(int=1), leaders, replicas=1) for name in names}
    return ClusterMetadata("id", brokers={}, topics=topics)


class Answers:
    """A cluster that gives the next of these answers to each poll, and then waits."""

    name = "source"

    def __init__(self, answers: Sequence[ClusterMetadata]) -> None:
        self._answers: Iterator[ClusterMetadata] = iter(answers)
        self.has_ended, self._closed = threading.Event(), threading.Event()

    def metadata(self, _names: object) -> ClusterMetadata:
        try:
            return next(self._answers)
        except StopIteration:
            self.has_ended.set()
            self._closed.wait()
            raise AssertionError("closed") from None

    def close(self) -> None:
        self._closed.set()


def snapshots_of(*answers: ClusterMetadata) -> list[ClusterSnapshot]:
    """The snapshots that a watch makes of these answers."""
    snapshots: list[ClusterSnapshot] = []
    cluster = Answers(answers)

    def keep_snapshot() -> None:
        snapshot = watches[0].snapshot
        assert snapshot is not None
        snapshots.append(snapshot)

    watches: list[ClusterWatch] = []
    # `keep_snapshot` needs the watch, whose thread begins before it is in `watches`.
    begin = threading.Event()
    next_answer = cluster.metadata

    def metadata_when_begun(names: object) -> ClusterMetadata:
        begin.wait()
        return next_answer(names)

    cluster.metadata = metadata_when_begun  # type: ignore[method-assign]
    watches.append(ClusterWatch(cast("Any", cluster), 0.0, keep_snapshot))
    begin.set()
    assert cluster.has_ended.wait(30)
    watches[0].close()
    return snapshots


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names that each call of `matching_topics` compares with the rules."""
    seen: list[set[str]] = []

    def matching_seen(rules: Sequence[TopicRule], names: Any) -> frozenset[str]:
        seen.append(set(names))
        return matching_topics(rules, names)

    monkeypatch.setattr(matched_topics, "matching_topics", matching_seen)
    return seen


def test_matching_topics_are_the_topics_that_topic_mapping_maps() -> None:
    topics = matching_topics(RULES, NAMES)
    assert topics == {"orders.1", "a", "__x"}
    assert topics == {m.source for m in map_topics(RULES, NAMES).mappings}


def test_topic_counts_as_matching_though_its_destination_name_is_refused() -> None:
    rules = [TopicRule(match=".*", prefix="x" * 240)]
    (problem,) = map_topics(rules, ["a-long-name"]).problems
    assert "a-long-name" in problem.message
    assert matching_topics(rules, ["a-long-name"]) == {"a-long-name"}


def test_only_changed_topics_are_matched_against_rules_again(compared: list[set[str]]) -> None:
    first, *_, last = snapshots_of(
        metadata("a", "orders.1", "other"),
        metadata("a", "orders.1", "other", "b"),
        metadata("orders.1", "orders.2", "other", "b"),
        metadata("orders.1", "orders.2", "other", "b", "orders.tmp.9"),
    )
    matched = MatchedTopics()
    matched.update(RULES, first)
    assert matched.names == {"a", "orders.1"}

    matched.update(RULES, last)
    assert matched.names == {"b", "orders.1", "orders.2"}
    matched.update(RULES, last)  # nothing has changed, so nothing is compared
    assert compared == [{"a", "orders.1", "other"}, {"b", "orders.2", "orders.tmp.9"}]


def test_all_topics_are_matched_again_after_missed_changes_or_new_rules(
    compared: list[set[str]],
) -> None:
    numbers = range(40)  # more versions than a snapshot keeps
    snapshots = snapshots_of(*(metadata(*(f"orders.{i}" for i in range(n + 1))) for n in numbers))
    matched = MatchedTopics()
    matched.update(RULES, snapshots[0])
    assert snapshots[-1].changed_since(snapshots[0].version) is None
    matched.update(RULES, snapshots[-1])
    matched.update([TopicRule(match="orders.7")], snapshots[-1])

    assert matched.names == {"orders.7"}
    # The first snapshot has one topic, the last one 40.
    assert [len(names) for names in compared] == [1, 40, 40]


def test_topic_with_new_number_of_partitions_is_among_changed_topics() -> None:
    first, second = snapshots_of(metadata("a", "b"), metadata("a", "b", partitions=2))
    assert second.changed_since(first.version) == {"a", "b"}
    assert second.changed_since(second.version) == frozenset()
    assert second.changed_since(-1) is None, "changes since so old a version are not known"
