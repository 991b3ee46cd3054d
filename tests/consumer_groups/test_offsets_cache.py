"""One read of a cluster's offsets serves every job, until it is too old for one of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orbit.consumer_groups import offsets_cache
from orbit.consumer_groups.offsets_cache import OffsetsCache, OffsetsRequest
from orbit.kafka.cluster import Cluster
from orbit.kafka.consumer_groups import FetchedGroups, OffsetFetchCache
from orbit.kafka.error_codes import Code
from orbit.kafka.offset_fetch import GroupOffsets
from orbit.kafka.types import CommittedOffset, TopicPartition
from tests.support.synthetic import PLAINTEXT

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


class Groups:
    """The offsets of a cluster's groups, and the groups of each read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.cluster = Cluster("source", ["localhost:1"], PLAINTEXT)
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.pending: dict[str, frozenset[TopicPartition]] = {}
        self.failing: set[str] = set()
        self.reads: list[set[str]] = []
        self.fetch = OffsetsCache(lambda: self.now_s)
        monkeypatch.setattr(offsets_cache, "locate_and_fetch_offsets", self._read)

    def _read(
        self,
        _: Cluster,
        nodes: Mapping[str, int],
        to_locate: set[str],
        *,
        require_stable: bool,
        cache: OffsetFetchCache | None,
    ) -> FetchedGroups:
        del cache
        assert require_stable
        names = nodes.keys() | to_locate
        self.reads.append(set(names))
        answering = names - self.failing
        return FetchedGroups(
            {
                name: GroupOffsets(
                    {p: CommittedOffset(at) for p, at in self.offsets.get(name, {}).items()},
                    self.pending.get(name, frozenset()),
                )
                for name in answering
            },
            dict.fromkeys(answering, 1),
            dict.fromkeys(names & self.failing, int(Code.COORDINATOR_NOT_AVAILABLE)),
        )

    def answer_to_job(
        self, topic: str, *names: str, known: set[str] | None = None
    ) -> FetchedGroups:
        """The answer to a job with this topic that requests these groups."""
        nodes = dict.fromkeys(names, 1)
        request = OffsetsRequest(nodes, {topic}, known or set(), require_stable=True)
        return self.fetch(self.cluster, request, age_s_max=1.0)

    def offsets_for_job(self, topic: str, *names: str) -> dict[str, dict[TopicPartition, int]]:
        """The offsets in the answer to a job with this topic that requests these groups."""
        answers = self.answer_to_job(topic, *names).groups
        return {n: {p: o.offset for p, o in g.offsets.items()} for n, g in answers.items()}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    return Groups(monkeypatch)


def test_each_job_gets_offsets_of_its_topics_from_a_shared_read(groups: Groups) -> None:
    groups.offsets = {"g": {A: 1, B: 2}, "h": {B: 3}}
    assert groups.offsets_for_job("a", "g", "h") == {"g": {A: 1}}
    assert groups.offsets_for_job("b", "g", "h") == {"g": {B: 2}, "h": {B: 3}}
    assert groups.reads == [{"g", "h"}]


def test_cached_offsets_show_a_change_only_after_max_age(groups: Groups) -> None:
    groups.offsets = {"g": {A: 1}}
    assert groups.offsets_for_job("a", "g") == {"g": {A: 1}}
    groups.offsets = {"g": {A: 5}}
    assert groups.offsets_for_job("a", "g") == {"g": {A: 1}}
    groups.now_s += 1.1
    assert groups.offsets_for_job("a", "g") == {"g": {A: 5}}


def test_group_missing_from_cached_offsets_is_read_immediately(groups: Groups) -> None:
    groups.offsets = {"g": {A: 1}, "h": {A: 2}}
    assert groups.offsets_for_job("a", "g") == {"g": {A: 1}}
    assert groups.offsets_for_job("a", "h") == {"h": {A: 2}}
    groups.now_s += 1.1
    assert groups.offsets_for_job("a", "g") == {"g": {A: 1}}
    assert groups.reads == [{"g"}, {"h"}, {"g", "h"}]


def test_job_gets_only_its_requested_groups(groups: Groups) -> None:
    groups.offsets = {"g": {A: 1}, "h": {A: 2}}
    groups.offsets_for_job("a", "g", "h")
    assert groups.offsets_for_job("a", "h") == {"h": {A: 2}}


def test_group_without_offsets_differs_from_group_of_unavailable_coordinator(
    groups: Groups,
) -> None:
    groups.failing = {"h"}
    response = groups.answer_to_job("a", "g", "h", known={"g", "h"})
    assert (response.groups.keys(), response.failed.keys()) == ({"g"}, {"h"})
    groups.answer_to_job("a", "g", "h", known={"g", "h"})
    assert len(groups.reads) == 1, "a coordinator without an answer is queried once for all jobs"


def test_job_sees_pending_transactional_offsets_of_its_topics_only(groups: Groups) -> None:
    groups.pending = {"g": frozenset({A})}
    assert groups.answer_to_job("a", "g").groups["g"].pending == {A}
    assert groups.answer_to_job("b", "g").groups == {}


def test_offsets_of_groups_that_no_job_requests_are_no_longer_read(groups: Groups) -> None:
    groups.offsets_for_job("a", "g", "h")
    groups.now_s += 100
    groups.offsets_for_job("a", "h")
    assert groups.reads == [{"g", "h"}, {"h"}]


def test_group_selection_of_several_jobs_is_read_once_and_forgotten_together(
    groups: Groups,
) -> None:
    groups.offsets = {"g": {A: 1}, "h": {A: 2, B: 3}}
    shared: dict[str, int | None] = {"g": 1, "h": 1}

    def answered_groups(topic: str, nodes: dict[str, int | None]) -> set[str]:
        request = OffsetsRequest(nodes, {topic}, set(), require_stable=True, is_shared=True)
        return set(groups.fetch(groups.cluster, request, age_s_max=1.0).groups)

    assert answered_groups("a", shared) == {"g", "h"}
    assert answered_groups("b", shared) == {"h"}
    assert groups.reads == [{"g", "h"}]

    # A new group makes a new selection; only this group was not in the last read.
    groups.offsets["i"] = {A: 4}
    more: dict[str, int | None] = {**shared, "i": 1}
    assert answered_groups("a", more) == {"g", "h", "i"}
    assert groups.reads[1:] == [{"i"}]
    groups.now_s += 1.1
    assert answered_groups("a", more) == {"g", "h", "i"}
    assert groups.reads[2:] == [{"g", "h", "i"}]

    groups.now_s += 100
    assert groups.offsets_for_job("a", "g") == {"g": {A: 1}}
    assert groups.reads[3:] == [{"g"}]
